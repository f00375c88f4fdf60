"""Comparisons of whole replays: totals, pairs, verdicts; files; and policies of the user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from compare_runs import POLICIES, found, study, write_small_trace

from hicache.errors import InputError
from scenario.load import _LOCATE
from scenario.results import load_result
from sim.compare import Comparison, compare
from sim.compare_files import check_folder, write_comparison
from sim.compare_pairs import by_prompt, by_source, tokens_by_source
from sim.compare_stats import METRICS
from sim.compare_variants import (
    _AFTER_AT,
    _NAMED_OR_PATH,
    _PATHS,
    Study,
    check_study,
    study_of_file,
    study_text,
    variant_of,
    variants_of_key,
)

SAME = "no clear difference"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_trace(tmp_path_factory.mktemp("trace") / "small.jsonl")


@pytest.fixture(scope="module")
def other_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_trace(tmp_path_factory.mktemp("trace") / "other.jsonl", seed=1)


@pytest.fixture(scope="module")
def small(trace: Path) -> Comparison:
    return found([trace], "cost", "always:restore.policy=always", "never:restore.policy=never")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own in the working folder."""
    (tmp_path / "mine.py").write_text(POLICIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return "mine"


def test_what_is_compared_is_what_the_summaries_say(small: Comparison) -> None:
    for place, contrast in enumerate(small.contrasts, 1):
        sides = (small.legs[0].outcome.summary, small.legs[place].outcome.summary)
        for each in contrast.differences:
            values = [_of_summary(summary, each.metric.key) for summary in sides]
            assert [each.base, each.other] == pytest.approx(values), each.metric.key
    assert [each.metric.key for each in contrast.differences] == [each.key for each in METRICS]


def _of_summary(summary: Any, key: str) -> float:
    if key == "hit_rate":
        return 100 * summary["cache_hit_rate"]
    if key.endswith("_per_s"):
        return summary["throughput"][key]
    name, statistic, _ = key.split("_")
    return summary[f"{name}_ms"][statistic]


def test_groups_and_sources_add_up_to_the_whole(small: Comparison) -> None:
    for contrast in small.contrasts:
        pairs = contrast.pairs
        total_s = pairs["ttft_change_ns"].sum() / 1e9
        hits = int(pairs["hit_change_tokens"].sum())
        for rows in (by_prompt(pairs, timed=True), by_source(pairs, timed=True)):
            assert sum(row["requests"] for row in rows) == len(pairs)
            assert sum(row["ttft_change_s"] for row in rows) == pytest.approx(total_s)
            assert sum(row["hit_change_tokens"] for row in rows) == hits
            for row in rows:
                assert row["gained"] + row["lost"] + row["same"] == row["requests"]
        tokens = tokens_by_source(pairs)
        assert sum(row["change"] for row in tokens.values()) == 0
        assert tokens["computed"]["change"] == -hits


def test_never_is_worse_and_where_that_comes_from(small: Comparison) -> None:
    never = small.contrasts[1]
    assert never.verdict.startswith("never is worse than cost: ")
    assert "Largest part" in never.reason
    table = by_source(never.pairs, timed=True)
    # Under "never" nothing but L1 serves a hit.
    assert {row["other"] for row in table} <= {"L1", "computed"}
    changed = small.document()["comparisons"][1]["most_changed"]["lost"]
    times = [row["other"]["ttft_ms"] - row["base"]["ttft_ms"] for row in changed]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(never.pairs["ttft_change_ns"].max() / 1e6)


def test_the_same_variant_twice_differs_in_nothing(trace: Path) -> None:
    (contrast,) = found([trace], "one", "two").contrasts
    assert contrast.verdict.startswith(f"{SAME} between two and one: mean TTFT +0.")
    assert contrast.verdict.endswith("; hit rate the same.")
    assert contrast.reason == ""
    assert (contrast.pairs["change"] == "same").all()


def test_several_traces_are_told_together_and_apart(trace: Path, other_trace: Path) -> None:
    both = found([trace, other_trace], "lru", "fifo:cache.eviction=fifo", mode="untimed")
    assert [each.trace for each in both.contrasts] == ["all traces", "small", "other"]
    whole, *parts = both.contrasts
    assert len(whole.pairs) == sum(len(each.pairs) for each in parts)
    assert whole.units == sum(each.units for each in parts)
    (rate,) = whole.differences
    asked = [each.pairs["prompt_tokens"].sum() for each in parts]
    rates = [each.differences[0].other for each in parts]
    mixed = sum(a * r for a, r in zip(asked, rates, strict=True)) / sum(asked)
    assert rate.other == pytest.approx(mixed)


def test_the_folder_holds_it_all_and_repeats_itself(small: Comparison, tmp_path: Path) -> None:
    place = Path(write_comparison(str(tmp_path / "a"), small))
    document = json.loads((place / "compare.json").read_text())
    assert document["comparisons"][0]["verdict"] == small.contrasts[0].verdict
    result = load_result(place / "runs" / "small" / "never")
    assert result.summary["restores"]["done"] == 0
    import pandas

    pairs = pandas.read_parquet(place / "pairs.parquet")
    assert len(pairs) == sum(len(each.pairs) for each in small.contrasts)
    assert set(pairs["other"]) == {"always", "never"}
    again = compare(study_of_file(str(place / "compare.toml")), small.options)
    second = Path(write_comparison(str(tmp_path / "b"), again))
    for path in sorted(place.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (second / path.relative_to(place)).read_bytes(), path


def test_a_folder_of_somebody_elses_is_not_replaced(small: Comparison, tmp_path: Path) -> None:
    write_comparison(str(tmp_path / "mine"), small)
    write_comparison(str(tmp_path / "mine"), small)  # an older comparison is
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(InputError, match="holds notes"):
        write_comparison(str(tmp_path / "mine"), small)
    (tmp_path / "file").write_text("")
    for path, why in (("file", "is a file"), ("file/deeper", "is a file, so no folder")):
        with pytest.raises(InputError, match=why):
            check_folder(str(tmp_path / path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "mine"]


# ---------------------------------------------------------------------- policies of one's own


@pytest.mark.parametrize("name", ["lru", "lfu", "mru", "slru"])
@pytest.mark.parametrize("mode", ["timed", "untimed"])
def test_an_own_strategy_does_what_the_built_in_one_does(
    trace: Path, mine: str, name: str, mode: str
) -> None:
    own = f"own:cache.eviction={mine}:{name}"
    both = found([trace], f"built_in:cache.eviction={name}", own, mode=mode)
    first, second = (leg.rows.drop(columns="reason") for leg in both.legs)
    assert first.equals(second)
    assert both.legs[0].outcome.summary["evicted_tokens_total"]["device"] > 0  # pyright: ignore


def test_an_own_restore_policy_does_what_the_built_in_one_does(trace: Path, mine: str) -> None:
    own = next(variants_of_key("restore.policy", [f"{mine}:Always"]))
    both = found([trace], "always:restore.policy=always", own)
    first, second = (leg.rows.drop(columns="reason") for leg in both.legs)
    assert first.equals(second)
    assert "mine" in set(both.legs[1].rows["reason"])
    text = both.legs[1].outcome.scenario_text
    assert text.startswith("# restore.policy was mine:Always, a class of the user's\n")
    assert "own_policy: restore.policy = mine:Always" in both.legs[1].outcome.summary["warnings"][0]  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("NotAChoice", "it said 7: it must be a Choice"),
        ("Backwards", r"it said goal -1: it must be a whole number of pages from \d+ \(restore"),
        ("NoReason", "it gave the reason ''"),
        ("Raises", r"ZeroDivisionError: .* \(.*mine.py:\d+\)"),
        ("CannotBeMade", "it cannot be made: RuntimeError: no"),
        ("NeedsMore", r"is made with \(page_size_tokens, belief\), and takes"),
        ("TakesNothing", r"is asked with \(hits\), and takes \(self\)"),
        ("NoCall", "has no __call__ that takes a Match"),
        ("a_function", "is no class but a function"),
        ("Alway", r"mine has no Alway \(did you mean Always\?\)"),
    ],
)
def test_a_bad_restore_policy_is_refused_in_a_line(
    trace: Path, mine: str, name: str, why: str
) -> None:
    with pytest.raises(InputError, match=why) as refused:
        found([trace], "cost", f"own:restore.policy={mine}:{name}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [("Text", "it said 'key': a key must be a number"), ("NotANumber", "it said nan")],
)
def test_a_bad_strategy_is_refused_in_a_line(trace: Path, mine: str, name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        found([trace], "lru", f"own:cache.eviction={mine}:{name}", mode="untimed")


def test_where_a_class_is_looked_for(trace: Path, mine: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "p.py").write_text(POLICIES)
    (tmp_path / "broken.py").write_text("import nothing_like_it\n")
    (tmp_path / "wrong.py").write_text("1 // 0\n")
    check_study(study([trace], "cost", "own:restore.policy=sub/p.py:Always"))
    for name, why in (
        ("absent:X", "there is no module absent in"),
        ("sub/q.py:X", "there is no module sub/q.py"),
        ("broken:X", "broken imports nothing_like_it: not found"),
        ("wrong:X", "wrong cannot be imported: ZeroDivisionError"),
        (":X", "it must be module:Class"),
    ):
        with pytest.raises(InputError, match=why):
            check_study(study([trace], "cost", f"own:restore.policy={name}"))


# ---------------------------------------------------------------------- studies


def test_a_variant_as_it_is_typed() -> None:
    made = variant_of(
        "big:tiers.l1=8,000,000tokens,trace.speed=2,restore.policy=m:C,scenario=a.toml"
    )
    assert made.options == {"tiers.l1": "8,000,000tokens", "trace.speed": 2.0}
    assert (made.name, made.own, made.scenario) == ("big", {"restore.policy": "m:C"}, "a.toml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("restore.policy=always", "must begin with a name"),
        ("a:restore.polcy=always", r"unknown key restore.polcy \(did you mean restore.policy"),
        ("a:always", "'always' is no assignment"),
        ("a/b:seed=1", "a variant's name is 'a/b'"),
        ("a:trace.path=x", "all variants replay the same traces"),
    ],
)
def test_a_variant_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        variant_of(text)


def test_a_study_survives_its_file(trace: Path, tmp_path: Path) -> None:
    made = Study(
        (str(trace),),
        (variant_of("a"), variant_of("b b:cache.eviction=x.y:Z,restore.overlap=false,seed=3")),
        common={"tiers.l1": "1GiB", "trace.speed": 0.5},
    )
    (tmp_path / "study.toml").write_text(study_text(made))
    assert study_of_file(str(tmp_path / "study.toml")) == made


def test_paths_of_a_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'traces = ["t.jsonl"]\nscenario = "base.toml"\n[common]\nmachine.profile = "./m.json"\n'
        'machine.store = "s.json"\nmodel.name = "Qwen3-4B"\nhw.store_config = "@c.json"\n'
        '[variant.a]\n[variant.b]\nscenario = "other.toml"\nrestore.policy = "p.py:C"\n'
    )
    made = study_of_file(str(tmp_path / "s.toml"))
    assert made.traces == (str(tmp_path / "t.jsonl"),)
    assert made.scenario == str(tmp_path / "base.toml")
    assert made.common == {
        "machine.profile": str(tmp_path / "m.json"),
        "machine.store": str(tmp_path / "s.json"),
        "model.name": "Qwen3-4B",
        "hw.store_config": f"@{tmp_path / 'c.json'}",
    }
    # Whatever a scenario file takes for a path is one here, too.
    assert {*_PATHS, *_NAMED_OR_PATH, *_AFTER_AT, "trace.path"} == set(_LOCATE)
    assert made.variants[1].scenario == str(tmp_path / "other.toml")
    assert made.variants[1].own == {"restore.policy": f"{tmp_path / 'p.py'}:C"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("trace = []", r"unknown key trace \(did you mean traces\?\)"),
        ('traces = "a"', "must be a list of files"),
        ("variant = 3", "variant must be tables"),
        ("[variant.a]\nrestore.x = 1", r"\[variant.a\]: unknown key restore.x"),
        ('[common]\nrestore.policy = "a:B"', "restore.policy belongs to a variant"),
        ("[variant", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=why):
        study_of_file(str(path))


@pytest.mark.parametrize(
    ("variants", "common", "why"),
    [
        (("a",), {}, "1 variant: a comparison takes two or more"),
        (("a", "a"), {}, "two variants are called a"),
        (("a", "b:mode=untimed"), {}, "variant b is untimed and a timed"),
        (("a", "b:restore.policy=mine:Always"), {"mode": "untimed"}, "asks no restore policy"),
        (("a", "b:restore.policy=al"), {}, 'variant b: .*restore.policy is "al"'),
    ],
)
def test_a_study_that_cannot_be(
    trace: Path, mine: str, variants: tuple[str, ...], common: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        check_study(study([trace], *variants, **common))


def test_traces_that_cannot_be(trace: Path) -> None:
    for traces, why in (([], "no trace"), ([trace] * 2, "given twice"), ([Path("-")], "standard")):
        with pytest.raises(InputError, match=why):
            check_study(study(traces, "a", "b"))


def test_requests_that_are_not_the_same_are_not_paired(tmp_path: Path) -> None:
    """Two readings of one log whose prompts differ in length cannot be laid side by side."""
    from sim.compare_pairs import pair

    base = found([write_small_trace(tmp_path / "t.jsonl")], "a", "b", mode="untimed").legs[0].rows
    with pytest.raises(InputError, match="have not the same prompt"):
        pair(base, base.assign(prompt_tokens=base["prompt_tokens"] + 1), "t", ("a", "b"))
    with pytest.raises(InputError, match="no request ended under both"):
        pair(base, base.assign(request=base["request"] + 10**6), "t", ("a", "b"))
