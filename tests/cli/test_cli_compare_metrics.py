"""`hicache compare-metrics`: a server's scrape beside a prediction; and the export in that form."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import run
from hicache.errors import InputError
from report.compare_metrics import Row
from report.counters import COUNTERS, SPREADS
from report.prometheus import (
    Scrape,
    at_rank,
    histogram,
    of_ranks,
    parse_scrape,
    quantile,
    sample_line,
    since,
)

LABELS = 'model_name="Qwen3-8B",engine_type="unified",tp_rank="{rank}",pp_rank="0"'
# As a server of two ranks gives it, with metrics of others in between.
SCRAPE = """
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",version="3.12"} 1.0
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="Qwen3-8B"} 10000.0
sglang:num_requests_total{is_streaming="true",model_name="Qwen3-8B"} 8.0
sglang:num_requests_total{is_streaming="false",model_name="Qwen3-8B"} 2.0
sglang:cached_tokens_total{cache_source="device",model_name="Qwen3-8B"} 3000.0
sglang:cached_tokens_total{cache_source="host",model_name="Qwen3-8B"} 1500.0 1700000000000
sglang:cached_tokens_total{cache_source="storage_file",model_name="Qwen3-8B"} 500.0
sglang:load_back_tokens_total{model_name="Qwen3-8B",tp_rank="0",pool="kv"} 640.0
sglang:load_back_tokens_total{model_name="Qwen3-8B",tp_rank="1",pool="kv"} 640.0
sglang:load_back_tokens_total{model_name="Qwen3-8B",tp_rank="0",pool="swa"} 999.0
sglang:load_back_bytes_total{model_name="Qwen3-8B",tp_rank="0"} 1e+06
sglang:load_back_bytes_total{model_name="Qwen3-8B",tp_rank="1"} 2e+06
sglang:hicache_dropped_tokens_total{model_name="Qwen3-8B",reason="host_pressure",pool="kv"} 64
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="Qwen3-8B"} 4.0 # {id="a"} 0.05
sglang:time_to_first_token_seconds_bucket{le="0.2",model_name="Qwen3-8B"} 9.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="Qwen3-8B"} 10.0
sglang:time_to_first_token_seconds_count{model_name="Qwen3-8B"} 10.0
sglang:time_to_first_token_seconds_sum{model_name="Qwen3-8B"} 2.0
sglang:hicache_host_total_tokens{model_name="Qwen3-8B",tp_rank="0"} 8000
vllm:cache_hit_rate NaN
"""
SUMMARY: dict[str, Any] = {
    "requests": 10,
    "prompt_tokens": 10_000,
    "cached_tokens_total": {"device": 3300, "host": 1500, "storage": 0},
    "computed_tokens": 5200,
    "cache_hit_rate": 0.48,
    "load_back_tokens_total": 704,
    "load_back_bytes_total": 3_000_000,
    "hicache_dropped_tokens_total": {"host_pressure": 0, "write_through_unbacked_eviction": 0},
    "hicache_host_total_tokens": 8000,
    "ttft_ms": {"p50": 162.5, "p90": 315.0, "p99": 841.5, "mean": 210.0},
}
# Of the rows, in no order. At the ranks of a histogram: 150, 250, 900.
TTFT_MS = [900, 20, 30, 146, 175, 190, 150, 199, 40, 250]


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result folder as far as this command reads it, and the scrape beside it."""
    folder = tmp_path / "result"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    (folder / "scenario.toml").write_text("")
    times: dict[str, list[int | None]] = {each.column: [None] * len(TTFT_MS) for each in SPREADS}
    times["ttft_ns"] = [ms * 1_000_000 for ms in TTFT_MS]
    pyarrow.parquet.write_table(pyarrow.table(times), folder / "requests.parquet")
    (tmp_path / "metrics.txt").write_text(SCRAPE)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hicache", "compare-metrics", *words])
        code = run()
        said = capsys.readouterr()
        return code, said.out, said.err

    return typed


def rows(type_in: Any, *words: str) -> dict[str, dict[str, Any]]:
    code, said, complained = type_in("result", *words, "--json")
    assert code == 0, complained
    return {row["name"]: row for row in json.loads(said)["rows"]}


# ---------------------------------------------------------------------- the comparison


@pytest.mark.usefixtures("result")
def test_each_counter_stands_beside_its_prediction(type_in: Any) -> None:
    found = rows(type_in, "metrics.txt")
    both = {name: (row["predicted"], row["measured"]) for name, row in found.items()}
    assert both["num_requests_total"] == (10, 10)
    assert both["prompt_tokens_total"] == (10_000, 10_000)
    assert both["cached_tokens_total{cache_source=device}"] == (3300, 3000)
    assert both["cached_tokens_total{cache_source=host}"] == (1500, 1500)
    assert both["cached_tokens_total{cache_source=storage}"] == (0, 500)
    assert both["computed tokens"] == (5200, 5000)
    assert both["cached over prompt tokens"] == (0.48, 0.5)
    assert found["cached_tokens_total{cache_source=device}"]["difference"] == pytest.approx(0.1)
    # Ranks count the same tokens, each its own bytes; other pools are not ours.
    assert both["load_back_tokens_total"] == (704, 640)
    assert both["load_back_bytes_total"] == (3_000_000, 3_000_000)
    # A reason that never came up is 0 where the counter is there, and unknown where it is not.
    assert both["hicache_dropped_tokens_total{reason=host_pressure}"] == (0, 64)
    assert both["hicache_dropped_tokens_total{reason=write_through_unbacked_eviction}"] == (0, 0)
    assert "storage_prefetch_hit_tokens_total" not in found
    assert both["hicache_host_total_tokens"] == (8000, 8000)


@pytest.mark.usefixtures("result")
def test_times_are_compared_with_the_buckets_of_a_histogram(type_in: Any) -> None:
    found = rows(type_in, "metrics.txt")
    assert found["TTFT p50 ms"]["between"] == [100, 200]
    assert found["TTFT p90 ms"]["between"] == [100, 200]
    assert found["TTFT p99 ms"]["between"] == [200, None]
    assert found["TTFT mean ms"]["measured"] == 200
    predicted = [found[f"TTFT {name} ms"]["predicted"] for name in ("p50", "p90", "p99", "mean")]
    assert predicted == [150, 250, 900, 210]
    _, said, _ = type_in("result", "metrics.txt")
    shown = {line[: len("TTFT p50 ms")]: line for line in said.splitlines()}
    assert shown["TTFT p50 ms"].endswith("100 .. 200      within")
    assert shown["TTFT p90 ms"].endswith("100 .. 200     outside")
    assert "over 200" in shown["TTFT p99 ms"]


@pytest.mark.usefixtures("result")
def test_the_table_shows_what_the_json_says(type_in: Any) -> None:
    _, said, _ = type_in("result", "metrics.txt")
    lines = said.splitlines()
    assert lines[0].split() == ["predicted", "measured", "difference"]
    (line,) = [
        line for line in lines if line.startswith("cached_tokens_total{cache_source=device}")
    ]
    assert line.split()[1:] == ["3,300", "3,000", "+10.0", "%"]
    assert len({len(line) for line in lines if "%" in line or "within" in line}) == 1


@pytest.mark.usefixtures("result")
def test_only_what_came_since_an_earlier_scrape_counts(type_in: Any, tmp_path: Path) -> None:
    earlier = SCRAPE.replace("} 10000.0", "} 4000.0").replace("} 3000.0", "} 1000.0")
    earlier = earlier.replace(
        'le="0.1",model_name="Qwen3-8B"} 4.0', 'le="0.1",model_name="Qwen3-8B"} 1'
    )
    (tmp_path / "before.txt").write_text(earlier)
    found = rows(type_in, "metrics.txt", "--since", "before.txt")
    assert found["prompt_tokens_total"]["measured"] == 6000
    assert found["cached_tokens_total{cache_source=device}"]["measured"] == 2000
    assert found["cached_tokens_total{cache_source=host}"]["measured"] == 0
    assert found["hicache_host_total_tokens"]["measured"] == 8000  # a gauge: as it is
    code, _, complained = type_in("result", "before.txt", "--since", "metrics.txt")
    assert code == 2
    assert "prompt_tokens_total is 4000" in complained
    assert "started again in between" in complained


@pytest.mark.usefixtures("result")
def test_labels_pick_a_server_out_of_several(type_in: Any, tmp_path: Path) -> None:
    other = SCRAPE.replace("Qwen3-8B", "Llama").replace("} 10000.0", "} 500.0")
    (tmp_path / "both.txt").write_text(SCRAPE + other)
    found = rows(type_in, "both.txt")
    assert found["prompt_tokens_total"]["measured"] == 10_500
    _, said, _ = type_in("result", "both.txt")
    assert "note: 2 values of model_name together (Llama, Qwen3-8B)" in said
    picked = rows(type_in, "both.txt", "--label", "model_name=Llama")
    assert picked["prompt_tokens_total"]["measured"] == 500
    code, _, complained = type_in("result", "both.txt", "--label", "model_name=Qwen")
    assert code == 2
    assert "no series with model_name='Qwen': it is one of Llama, Qwen3-8B" in complained


@pytest.mark.usefixtures("result")
def test_counts_of_other_requests_are_noted(type_in: Any, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text(SCRAPE.replace('"true",model_name="Qwen3-8B"} 8', '"t"} 9'))
    _, said, _ = type_in("result", "more.txt")
    assert "the server ended 11 requests and the replay 10" in said


BAD = {
    "none.txt": (None, "none.txt: No such file"),
    "html.txt": ("<html>\n", "html.txt, line 1: no sample"),
    "others.txt": ("up 1\n", "others.txt: no series of SGLang's"),
    "empty.txt": ("# nothing\n", "empty.txt: no series at all"),
    "cut.txt": ('sglang:a{b="c} 1\n', "cut.txt, line 1: its labels are not well formed"),
    "word.txt": ("sglang:a many\n", "the value 'many' is no number"),
    "bare.txt": ("sglang:a\n", "a sample is a name, labels and a value"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.usefixtures("result")
def test_what_is_no_scrape_is_one_line(type_in: Any, tmp_path: Path, name: str) -> None:
    text, says = BAD[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    code, said, complained = type_in("result", name)
    assert (code, said, complained.count("\n")) == (2, "", 1)
    assert says in complained


@pytest.mark.usefixtures("result")
def test_other_mistakes_are_one_line(type_in: Any) -> None:
    for words, says in (
        (("nowhere", "metrics.txt"), "nowhere is no result folder"),
        (("result", "metrics.txt", "--label", "model_name"), "write NAME=VALUE"),
        (("result", "metrics.txt", "--label", "pod=a"), "no series has that label"),
    ):
        code, _, complained = type_in(*words)
        assert (code, complained.count("\n")) == (2, 1)
        assert says in complained


@pytest.mark.usefixtures("result")
def test_a_scrape_may_come_from_standard_input(
    type_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SCRAPE.encode())))
    assert rows(type_in, "-")["prompt_tokens_total"]["measured"] == 10_000


# ---------------------------------------------------------------------- the export


def test_an_exported_prediction_is_equal_to_itself(
    type_in: Any, small_replay: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["hicache", *small_replay, "--out", "result", "--prometheus", "metrics.prom"]
    )
    assert run() == 0
    type_in("result", "metrics.prom")  # forgets what the replay printed
    found = rows(type_in, "metrics.prom")
    known = [row for row in found.values() if row["measured"] is not None]
    assert len(known) > 18
    for row in known:
        assert row["measured"] == pytest.approx(row["predicted"], rel=1e-8), row
    between = [row for row in found.values() if row["between"]]
    assert len(between) == 12
    for row in between:
        low, high = row["between"]
        assert low < row["predicted"] or low == row["predicted"] == 0, row
        assert row["predicted"] <= (math.inf if high is None else high), row
    assert found["cached_tokens_total{cache_source=storage}"]["measured"] > 0
    first = (tmp_path / "metrics.prom").read_bytes()
    monkeypatch.setattr(
        sys, "argv", ["hicache", *small_replay, "--out", "result", "--prometheus", "again.prom"]
    )
    assert run() == 0
    assert (tmp_path / "again.prom").read_bytes() == first


def test_where_it_cannot_be_written_is_said_before_the_run(
    type_in: Any, small_trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = ["replay", str(small_trace), "--out", "result", "--prometheus", "no/where.prom"]
    monkeypatch.setattr(sys, "argv", ["hicache", *words])
    assert run() == 2
    assert "--prometheus no/where.prom: no such folder" in capsys.readouterr().err
    assert not (tmp_path / "result").exists()


# ---------------------------------------------------------------------- the format


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=12), max_size=4
    ),
    st.floats(allow_nan=False),
)
def test_what_is_written_is_read(labels: dict[str, str], value: float) -> None:
    # A label's value has no line breaks but that which is escaped.
    labels = {key: "".join(text.splitlines()) for key, text in labels.items()}
    scrape = parse_scrape(sample_line("sglang:x", labels, value), "here")
    assert scrape.series == {"x": {tuple(sorted(labels.items())): value}}


def test_escapes_and_underscores() -> None:
    text = 'sglang_x_total{ a = "1\\n\\"2\\"\\\\" , b="" , } 3\n'
    scrape = parse_scrape(text, "here")
    assert scrape.series == {"x_total": {(("a", '1\n"2"\\'), ("b", "")): 3.0}}


def test_ranks_are_taken_once_and_replicas_added() -> None:
    series = {
        (("dp_rank", dp), ("tp_rank", tp)): count
        for dp, tp, count in (("0", "0", 5.0), ("0", "1", 4.0), ("1", "0", 3.0), ("1", "1", 3.0))
    }
    assert of_ranks(series, "largest") == 8.0
    assert of_ranks(series, "sum") == 15.0


def test_bytes_of_all_ranks_are_predicted_and_tokens_of_one() -> None:
    one = {"load_back_bytes_total": 10, "load_back_tokens_total": 7}
    for summary, expected in ((one, (10, 7)), ({**one, "ranks": {"tp": 4}}, (40, 7)), ({}, None)):
        found = {each.name: each.predicted(summary) for each in COUNTERS}
        pair = (found["load_back_bytes_total"], found["load_back_tokens_total"])
        assert pair == (expected or (None, None))


def test_quantiles_are_edges() -> None:
    text = "".join(
        f'sglang:t_bucket{{le="{edge}",s="{s}"}} {count}\n'
        for s, counts in (("a", (0, 2, 2)), ("b", (1, 1, 2)))
        for edge, count in zip(("1", "5", "+Inf"), counts, strict=True)
    )
    buckets = histogram(parse_scrape(text, "here"), "t")
    assert buckets == [(1.0, 1.0), (5.0, 3.0), (math.inf, 4.0)]
    assert quantile(buckets, 0.25) == (0.0, 1.0)
    assert quantile(buckets, 0.5) == (1.0, 5.0)
    assert quantile(buckets, 0.99) == (5.0, math.inf)
    assert quantile([], 0.5) is None
    assert quantile([(1.0, 0.0)], 0.5) is None


@given(st.lists(st.integers(0, 12), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_time_at_its_rank_lies_in_the_bucket_of_the_same_times(
    times: list[int], share: float
) -> None:
    buckets = [(edge, float(sum(time <= edge for time in times))) for edge in (2.0, 5.0, math.inf)]
    time = at_rank(sorted(times), share)
    all_edges = [(0.0, 2.0), (2.0, 5.0), (5.0, math.inf)]
    assert [each for each in all_edges if Row("", time, None, each).fits] == [
        quantile(buckets, share)
    ]


def test_rows_that_cannot_be_read_are_one_line(type_in: Any, result: Path) -> None:
    (result / "requests.parquet").write_bytes(b"PAR1 and no more")
    for _ in ("no parquet", "none at all"):
        code, said, complained = type_in("result", "metrics.txt")
        assert (code, said, complained.count("\n")) == (2, "", 1)
        assert "requests.parquet: " in complained
        (result / "requests.parquet").unlink(missing_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), result / "requests.parquet")
    code, said, complained = type_in("result", "metrics.txt")
    assert (code, said, complained.count("\n")) == (2, "", 1)
    assert "it has no column ttft_ns" in complained


def test_a_series_that_is_new_counts_from_0() -> None:
    later = Scrape("later", {"a_total": {(("x", "1"),): 5.0}, "g": {(): 1.0}})
    earlier = Scrape("earlier", {"g": {(): 9.0}})
    grown = since(later, earlier, frozenset({"g"}))
    assert grown.series == {"a_total": {(("x", "1"),): 5.0}, "g": {(): 1.0}}
    with pytest.raises(InputError, match="started again"):
        since(earlier, Scrape("x", {"g_total": {}}), frozenset()) and since(
            Scrape("l", {"a_total": {(): 1.0}}), Scrape("e", {"a_total": {(): 2.0}}), frozenset()
        )
