"""Every picture: what it shows is what the rows say; and the style that all of them share."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from report.plots import belief, capacity, devices, plan
from report.plots import requests as plots
from report.plots.style import (
    DASHES,
    LINES,
    MARKERS,
    SOURCE_COLOURS,
    SOURCES,
    save,
    svg_element,
)

SECOND = 10**9


def made_rows(count: int = 200, seed: int = 0) -> pd.DataFrame:
    """Rows as of requests.parquet, of which every kind occurs."""
    random = np.random.default_rng(seed)
    prompts = random.integers(100, 40_000, count)
    cuts = np.sort(random.integers(0, prompts[:, None] + 1, (count, 3)), axis=1)
    parts = np.diff(cuts, axis=1, prepend=0, append=prompts[:, None])
    ms = random.exponential(50, (count, 4)) * 1e6
    rows = pd.DataFrame({f"{name}_tokens": parts[:, at] for at, name in enumerate(SOURCES)})
    rows["request"] = np.arange(count)
    rows["arrival_ns"] = np.arange(count) * SECOND
    rows["prompt_tokens"] = prompts
    for place, name in enumerate(("queue_ns", "restore_ns", "prefill_ns")):
        rows[name] = ms[:, place].astype(int)
    rows["ttft_ns"] = pd.array(ms[:, :3].sum(axis=1).astype(int), dtype="Float64")
    rows["e2e_ns"] = rows["ttft_ns"] + 5 * SECOND
    rows.loc[3, ["ttft_ns", "e2e_ns"]] = pd.NA
    words = ("", "cost", "recompute_cheaper", "probe", "restore_failed", "my_own_word")
    rows["reason"] = [words[each] for each in random.integers(0, len(words), count)]
    return rows


def labels(figure: Any) -> list[str]:
    """Of the axes' legend, or the figure's."""
    axes = figure.axes[0]
    legends = [axes.get_legend(), *figure.legends]
    return [text.get_text() for legend in legends if legend for text in legend.get_texts()]


def test_the_distribution_ends_at_one_and_has_every_request() -> None:
    rows = made_rows()
    figure = plots.ttft_distribution({"a": rows, "b": made_rows(seed=1)})
    line = figure.axes[0].get_lines()[0]
    times, shares = line.get_data()
    assert len(times) == rows["ttft_ns"].notna().sum() == 199
    assert shares[-1] == 1
    middle = np.median(rows["ttft_ns"].dropna().to_numpy(float)) / 1e6
    assert np.interp(middle, times, shares) == pytest.approx(0.5, abs=0.01)
    assert labels(figure) == ["a", "b"]


def test_sources_add_up_to_all_tokens() -> None:
    rows = made_rows()
    figure = plots.tokens_by_source({"a": rows}, ceiling=0.9)
    widths = [patch.get_width() for patch in figure.axes[0].patches]
    expected = [
        100 * rows[f"{name}_tokens"].sum() / rows["prompt_tokens"].sum() for name in SOURCES
    ]
    assert widths == pytest.approx(expected)
    assert "90.0 %" in figure.axes[0].get_title(loc="left")
    over_time = plots.sources_over_time(rows, "a")
    heights = np.array([patch.get_height() for patch in over_time.axes[0].patches])
    assert heights.reshape(4, plots.BINS).sum(axis=0) == pytest.approx(np.full(plots.BINS, 100))


def test_every_hit_below_l1_is_shown_once_whatever_its_reason() -> None:
    rows = made_rows()
    figure = plots.restores_over_time(rows)
    heights = sum(patch.get_height() for patch in figure.axes[0].patches)
    assert heights == (rows["reason"] != "").sum()
    words = {each.rpartition(" (")[0]: int(each.rpartition("(")[2][:-1]) for each in labels(figure)}
    own = rows[rows["reason"] == "my_own_word"]
    fetched = int((own["host_tokens"] + own["storage_tokens"] > 0).sum())
    counted = rows["reason"].value_counts()
    assert words["restored"] == counted["cost"] + fetched
    assert words["failed or timed out"] == counted["restore_failed"]


def test_medians_by_prompt_length() -> None:
    rows = made_rows()
    figure = plots.ttft_by_prompt({"a": rows})
    (line,) = [each for each in figure.axes[0].get_lines() if each.get_marker() == MARKERS[0]]
    power = int(np.log2(rows["prompt_tokens"].max()))
    mine = rows[(rows["prompt_tokens"] >= 2**power) & rows["ttft_ns"].notna()]
    assert line.get_ydata()[-1] == pytest.approx(mine["ttft_ns"].median() / 1e6)
    assert figure.axes[0].get_xticklabels()[-1].get_text() == "32k-64k"


def test_a_requests_parts_add_up_to_its_end() -> None:
    rows = made_rows().dropna(subset=["ttft_ns"])
    parts = plots.request_parts(rows)
    assert parts.sum(axis=1).to_numpy() == pytest.approx(rows["e2e_ns"].to_numpy(float) / 1e6)
    figure = plots.request_timeline(rows, [7, 5])
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["request 7", "request 5"]
    slowest = plots.request_timeline(rows).axes[0].get_yticklabels()
    assert slowest[0].get_text() == f"request {rows['ttft_ns'].astype(float).idxmax()}"


def test_who_gained_and_lost() -> None:
    table = pd.DataFrame({"from_tokens": [1024, 2048], "gained": [3, 1], "lost": [2, 9]})
    figure = plots.changes_by_prompt(table, "a", "b")
    assert [patch.get_height() for patch in figure.axes[0].patches] == [3, 1, -2, -9]
    assert labels(figure) == ["gained (4)", "lost (11)"]


def test_nothing_to_show_is_said_in_words() -> None:
    none = made_rows(5)
    none[["ttft_ns", "e2e_ns"]] = pd.NA
    none["reason"] = ""
    empty = made_rows()[:0]
    no_work = pd.DataFrame(columns=["track", "start_ms", "end_ms", "bytes", "tokens"])
    figures = [
        plots.ttft_distribution({"a": none}), plots.ttft_by_prompt({"a": none}),
        plots.restores_over_time(none), plots.request_timeline(none),
        plots.sources_over_time(empty), devices.utilisation(no_work),
        devices.waiting_over_time(pd.DataFrame(columns=["at_ms", "counter", "value"])),
        devices.prefetches_over_time(pd.DataFrame(columns=["at_ms", "counter", "value"])),
        capacity.hit_rate_over_capacity(pd.DataFrame(columns=list(capacity.COLUMNS))),
        belief.belief_against_truth(pd.DataFrame()),
    ]  # fmt: skip
    for figure in figures:
        assert figure.axes[0].texts[0].get_text()


# ---------------------------------------------------------------------- devices


def test_busy_shares_are_those_of_a_clock_that_looks_at_every_tick() -> None:
    random = np.random.default_rng(4)
    for _ in range(30):
        starts = random.integers(0, 900, 12)
        ends = starts + random.integers(0, 150, 12)
        edges = np.linspace(0, 1000, 8)
        ticks = np.arange(0, 1000, 0.25)
        busy = ((ticks[:, None] >= starts) & (ticks[:, None] < ends)).any(axis=1)
        places = np.searchsorted(edges, ticks, side="right") - 1
        naive = [busy[places == each].mean() for each in range(7)]
        found = devices.busy_shares(starts.astype(float), ends.astype(float), edges)
        assert found == pytest.approx(naive, abs=0.01)


def test_averages_and_peaks_of_a_counter() -> None:
    edges = np.array([0.0, 10, 20, 30])
    average, most = devices.spread_over(np.array([5.0, 12, 14]), np.array([2.0, 8, 1]), edges)
    # 0 to 5: 0, to 12: 2, to 14: 8, then 1.
    assert average.tolist() == pytest.approx([1.0, (2 * 2 + 2 * 8 + 6) / 10, 1.0])
    assert most.tolist() == [2, 8, 1]


def test_prefetches_and_time_outs_over_time(tmp_path: Path) -> None:
    from scenario.load import load_scenario
    from sim.replay import replay
    from traces.generator import AgentOptions, write_trace

    path = tmp_path / "t.jsonl"
    agents = AgentOptions(hours=0.03, turns_mean=8, sessions_per_hour=3000,
                          system_prompt_median_tokens=1000, longest_prompt_tokens=8000)  # fmt: skip
    write_trace(agents, path)
    options = {
        "trace.path": str(path), "tiers.l1": "40000tokens", "tiers.l2": "1x", "tiers.l3": "10x",
        "storage.index": "store", "prefetch.mode": "queued", "prefetch.stop": "timeout",
        "prefetch.timeout_max_s": 0.2, "restore.policy": "always",
    }  # fmt: skip
    outcome = replay(load_scenario(None, options), timeline=True)
    summary: Any = outcome.summary
    lost = summary["storage_prefetch_unfulfilled_tokens_total"]
    assert lost["deadline"] > 0
    assert summary["prefetch_fulfilled_tokens"] > 0
    figure = devices.prefetches_over_time(devices.states_of(outcome.extras["timeline.json"]))
    shown = {text.rpartition(" (")[0]: text.rpartition("(")[2][:-1] for text in labels(figure)}
    assert shown["timed out"] == f"{lost['deadline']:,}"
    assert shown["read in time"] == f"{summary['prefetch_fulfilled_tokens']:,}"
    heights = sum(patch.get_height() for patch in figure.axes[0].patches)
    assert heights == summary["prefetch_fulfilled_tokens"] + sum(lost.values())


def test_a_timeline_is_read_back() -> None:
    from scenario.load import load_scenario
    from sim.replay import replay

    trace = Path(__file__).resolve().parents[2] / "scenarios" / "traces" / "alternating-2000.jsonl"
    options = {
        "trace.path": str(trace), "trace.block_tokens": 50, "tiers.page_size_tokens": 50,
        "tiers.l1": "4000tokens", "tiers.l2": "4x", "tiers.l3": "10x",
        "restore.policy": "always",
    }  # fmt: skip
    outcome = replay(load_scenario(None, options), timeline=True)
    text = outcome.extras["timeline.json"]
    summary: Any = outcome.summary
    operations = devices.operations_of(text)
    for track, moved in summary["transfers"].items():
        mine = operations[operations["track"] == track]
        assert (len(mine), mine["bytes"].sum()) == (moved["operations"], moved["bytes"])
    assert (operations["track"] == "prefill").sum() == summary["gpu"]["prefill_steps"]
    states = devices.states_of(text)
    assert set(states["counter"]) == {
        "waiting_requests", "running_requests", "pending_restores", "pending_writes",
        "write_backlog_pages",
    }  # fmt: skip
    assert states.groupby("counter")["value"].last().tolist() == [0, 0, 0, 0, 0]
    assert states["value"].max() > 0
    used = devices.utilisation(operations)
    assert len(used.axes) == operations["track"].nunique()
    assert labels(devices.waiting_over_time(states)) == []


# ---------------------------------------------------------------------- capacity and belief


def test_a_curve_its_optimum_and_a_policy() -> None:
    document = {
        "trace": {"path": "x/t.jsonl", "requests": 3}, "method": "exact", "interrupted": False,
        "page_size_tokens": 64, "page_bytes": 1 << 30, "prompt_pages": 200, "hit_pages_all": 100,
        "capacity_pages": [0, 10, 100], "hit_pages": [0, 50, 100],
        "optimum": [{"capacity_pages": 20, "may_bypass": {"hit_pages": 90}, "must_insert": None}],
        "optimum_curve": {"capacity_pages": [5], "hit_pages_may_bypass": [70],
                          "hit_pages_must_insert": [-1]},
    }  # fmt: skip
    table = capacity.curve_table(document)
    lru = table[table["series"] == "LRU"]
    assert np.interp(55, lru["capacity"], lru["hit_percent"]) == pytest.approx(37.5, abs=0.1)
    best = table[table["series"] == "optimum, may bypass"]
    assert best[["capacity", "hit_percent"]].to_numpy().tolist() == [[5, 35], [20, 45]]
    assert set(table["series"]) == {"LRU", "optimum, may bypass"}
    mine = pd.DataFrame(
        [{"series": "mine", "kind": "points", "capacity": 30.0, "hit_percent": 33.0}]
    )
    figure = capacity.draw_curve(document, mine)
    assert labels(figure) == ["LRU", "optimum, may bypass", "mine"]
    assert figure.axes[0].texts[0].get_text() == "ceiling 50.0 %"


def test_a_plan_its_front_and_its_goal() -> None:
    points = [
        {"cost": cost, "ttft_ms.p99": ms, "tiers.l2": f"{cost}GiB", "tiers.l3": "9GiB",
         "l3_bytes": 9 * (cost == 40)}
        for cost, ms in ((0, 900.0), (10, 300.0), (20, 500.0), (40, 100.0))
    ]  # fmt: skip
    table = plan.plan_table({"points": points, "front": [0, 1, 3], "knee": 1, "chosen": None})
    assert table["front"].tolist() == [True, True, False, True]
    figure = plan.ttft_over_cost(table, 200.0)
    assert labels(figure) == ["simulated", "front", "knee", "goal"]
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    drawn = {each.get_label(): each.get_xydata().tolist() for each in axes.get_lines()}
    assert drawn["front"] == [[0, 900], [10, 300], [40, 100]]
    assert (drawn["simulated"], drawn["knee"]) == ([[20, 500]], [[10, 300]])
    assert [each.get_text() for each in axes.texts] == [
        "L2 0GiB", "L2 10GiB", "L2 40GiB, L3 9GiB"
    ]  # fmt: skip
    assert plan.ttft_over_cost(table[:0]).axes[0].texts[0].get_text() == "nothing was simulated"


def test_belief_over_truth_and_the_regret_so_far() -> None:
    table = pd.DataFrame(
        {
            "recompute_believed_ms": [2.0, 3], "recompute_true_ms": [1.0, 3],
            "h2d_believed_ms": [1.0, 1], "h2d_true_ms": [2.0, 1],
            "s2h_believed_ms": [None, None], "s2h_true_ms": [None, None],
            "regret_ms": [5.0, 1], "right": [False, True],
        }
    )  # fmt: skip
    figure = belief.belief_against_truth(table, "t", settled_at=1)
    lines = [list(each.get_ydata()) for each in figure.axes[0].get_lines()]
    assert lines[:2] == [[2, 1], [0.5, 1]]  # and no third: there is no L3
    assert list(figure.axes[1].get_lines()[0].get_ydata()) == [5, 6]


# ---------------------------------------------------------------------- style


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    """WCAG 2.2, contrast ratio."""
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_lines_can_be_seen_on_white_and_told_apart_without_colour() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for colour in LINES:
        assert contrast(colour, "#ffffff") >= 3, colour
    assert len(set(map(str, DASHES))) == len(LINES) == len(set(MARKERS))
    # Fills that lie side by side differ in grey, or in their hatch.
    greys = [luminance(each) for each in SOURCE_COLOURS]
    from report.plots.style import HATCHES

    for left, right in zip(range(3), range(1, 4), strict=True):
        assert abs(greys[left] - greys[right]) > 0.1 or HATCHES[left] != HATCHES[right]


def test_a_figure_is_the_same_bytes_again(tmp_path: Path) -> None:
    for ending in ("png", "svg"):
        for name in "ab":
            save(plots.ttft_by_prompt({"x": made_rows()}), str(tmp_path / f"{name}.{ending}"))
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_an_svg_in_a_page_has_a_name_and_ids_of_its_own() -> None:
    elements = [
        svg_element(plots.tokens_by_source({"x": made_rows()}), name, 'who & "why" \\1')
        for name in ("f0", "f1")
    ]
    ids = [set(re.findall(r'\bid="([^"]+)"', each)) for each in elements]
    assert not ids[0] & ids[1]
    for element, known in zip(elements, ids, strict=True):
        used = set(re.findall(r"url\(#([^)]+)\)", element))
        used |= set(re.findall(r'href="#([^"]+)"', element))
        assert used <= known
        assert element.startswith('<svg role="img" aria-label="who &amp; &quot;why&quot; \\1"')
        assert "<title>who &amp; &quot;why&quot; \\1</title>" in element
        assert "<script" not in element


def test_no_picture_touches_the_styles_of_others() -> None:
    import matplotlib

    before = json.dumps({key: str(value) for key, value in matplotlib.rcParams.items()})
    plots.sources_over_time(made_rows())
    assert json.dumps({key: str(value) for key, value in matplotlib.rcParams.items()}) == before
