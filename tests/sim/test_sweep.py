"""What a sweep is made of: its cells, their digests, traces that are kept, and its journal."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from hicache.errors import InputError
from hicache.requests import Request
from scenario.load import load_scenario
from scenario.profile import Profile, dump_profile
from scenario.results import summary_text
from scenario.stores import dump_store, load_store
from sim import sweep_trace
from sim.replay import replay
from sim.sweep import Grid, axis_of, cells_of
from sim.sweep_cell import Job, figures_of, job_of, run_job
from sim.sweep_pool import Lost, WorkersLost, end_workers, run_here
from sim.sweep_store import Journal
from sim.sweep_trace import KeptTraces
from traces.generator import AgentOptions, write_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Some hundred requests of agents with short prompts."""
    path = tmp_path_factory.mktemp("sweep") / "t.jsonl"
    options = AgentOptions(
        hours=0.02, turns_mean=6, sessions_per_hour=3000, system_prompt_median_tokens=1000,
        longest_prompt_tokens=8000,
    )  # fmt: skip
    write_trace(options, path)
    return str(path)


SMALL = {"tiers.l1": "40000tokens", "tiers.l2": "2x", "tiers.l3": "10x"}


def test_cells_are_all_combinations_the_last_axis_fastest(trace: str, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 3)):
        (tmp_path / f"{name}.toml").write_text(
            f'seed = {seed}\n[tiers]\nl1 = "40000tokens"\n[trace]\nprefix_groups = {seed + 4}\n'
        )
    files = [str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]
    axes = dict([axis_of("tiers.l2=0, 1x"), axis_of("restore.policy=cost,always,never")])
    cells = cells_of(Grid(files, [trace], axes))
    assert [cell.number for cell in cells] == list(range(12))
    assert list(cells[0].options) == [
        "seed", "trace.prefix_groups", "tiers.l2", "restore.policy"
    ]  # fmt: skip
    found = [(cell.file[-6:], *cell.options.values()) for cell in cells]
    assert found[:4] == [
        ("a.toml", 0, 4, "0", "cost"), ("a.toml", 0, 4, "0", "always"),
        ("a.toml", 0, 4, "0", "never"), ("a.toml", 0, 4, "1x", "cost"),
    ]  # fmt: skip
    assert found[6][:3] == ("b.toml", 3, 7)
    assert len({cell.digest for cell in cells}) == 12


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tiers.l2", "write KEY=V1,V2"),
        ("tiers.l2=0,,1x", "write KEY=V1,V2"),
        ("tiers.l4=0,1x", "did you mean tiers.l3"),
        ("seed=1,2,1", "1 is there twice"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        axis_of(text)


def test_the_cell_that_cannot_be_is_named_before_anything_runs(trace: str) -> None:
    grid = Grid((), [trace], dict([axis_of("tiers.l1=40000tokens,1tokens")]))
    with pytest.raises(InputError, match=r"less than one page.*\(in .*tiers.l1=1tokens\)"):
        cells_of(grid)
    with pytest.raises(InputError, match="No such file"):
        cells_of(Grid((), ["/none.jsonl"]))
    with pytest.raises(InputError, match="standard input cannot be read again"):
        cells_of(Grid((), ["-"]))
    axes = {"seed": list(range(400)), "tiers.page_size_tokens": list(range(1, 400))}
    with pytest.raises(InputError, match="the grid has 159,600 scenarios; at most"):
        cells_of(Grid((), [trace], axes))


def test_a_digest_changes_with_all_that_figures_depend_on(trace: str, tmp_path: Path) -> None:
    profile = Path(__file__).parents[2] / "scenario" / "profiles" / "nvidia-h200.json"
    mine, copy = tmp_path / "mine.json", tmp_path / "copy.jsonl"
    mine.write_text(profile.read_text())
    copy.write_bytes(Path(trace).read_bytes())
    options = {**SMALL, "machine.profile": str(mine)}

    def digest() -> str:
        return cells_of(Grid((), [str(copy)], {}, options))[0].digest

    before = digest()
    assert digest() == before
    mine.write_text(profile.read_text().replace("60000", "60001", 1))
    other_machine = digest()
    copy.write_bytes(Path(trace).read_bytes() + Path(trace).read_bytes().splitlines(True)[-1])
    other_trace = digest()
    store = tmp_path / "store.json"
    options["machine.store"] = str(store)
    written = dump_store(load_store("mooncake"))
    digests = {before, other_machine, other_trace}
    for text in (written, written.replace("87000000000", "87000000001", 1)):
        store.write_text(text)
        digests.add(digest())
    assert len(digests) == 5
    store.write_text("{}")
    with pytest.raises(InputError, match=r"store\.json: "):
        digest()


def test_what_all_cells_share_is_made_once(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measured profile's text takes longer than all else that is checked of a cell."""
    made: list[str] = []

    def counted(profile: Profile) -> str:
        made.append(profile.name)
        return dump_profile(profile)

    monkeypatch.setattr("sim.sweep.dump_profile", counted)
    axes = dict([axis_of("seed=1,2,3"), axis_of("machine.profile=nvidia-h200,mini-group-b")])
    assert len(cells_of(Grid((), [trace], axes, {"tiers.l1": "40000tokens"}))) == 6
    assert made == ["nvidia-h200", "mini-group-b"]


@pytest.mark.extended
def test_figures_are_those_of_a_replay_also_from_a_kept_trace(trace: str) -> None:
    """Several scenarios in turns, so that each kept trace is used again after another."""
    variants = [
        {**SMALL, "trace.path": trace, "restore.policy": policy, "tiers.page_size_tokens": page,
         "trace.speed": speed, "load.loop": loop}
        for policy in ("cost", "always") for page in (16, 64) for speed in (1.0, 4.0)
        for loop in ("open", "closed")
    ]  # fmt: skip
    for options in variants:
        scenario = load_scenario(None, options)
        done = run_job(job_of(0, scenario))
        expected = json.loads(summary_text(replay(scenario).summary))
        assert done.error == ""
        assert done.figures == figures_of(expected)
        assert done.figures["requests"] > 50
        assert done.figures["cached_tokens_total.host"] > 0


def test_a_kept_trace_is_read_once_and_a_long_one_each_time(
    trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load_scenario(None, {**SMALL, "trace.path": trace})
    kept = KeptTraces()
    first = kept.open(scenario)
    rows = [repr(each) for each in first.requests(64)]
    facts = first.facts
    again = kept.open(scenario)
    assert again is first
    assert [repr(each) for each in again.requests(64)] == rows
    assert again.facts is facts, "nothing was read"
    for one, other in zip(again.requests(64), again.requests(64), strict=True):
        one.arrival_ns = -5
        assert other.arrival_ns != -5
    monkeypatch.setattr(sweep_trace, "MOST_PIECES", 10)
    long = KeptTraces().open(scenario)
    assert [repr(each) for each in long.requests(64)] == rows
    facts = long.facts
    assert [repr(each) for each in long.requests(64)] == rows
    assert long.facts is not facts, "it was read anew"


def test_another_speed_is_not_read_and_has_the_times_that_it_would_read(
    trace: str, tmp_path: Path
) -> None:
    lengths = '"input_length": 600, "output_length": 3'
    closed = tmp_path / "c.jsonl"
    closed.write_text(
        '{"hicache_trace":1,"block_tokens":0,"timed":true}\n'
        '{"input_length":512,"output_length":64,"timestamp":0.25,"session":"a",'
        '"pieces":[[0,512]],"answer":[[1,64]]}\n'
        '{"input_length":99,"output_length":4,"timestamp":0.5,"session":"b","pieces":[[9,99]]}\n'
        '{"input_length":1088,"output_length":64,"timestamp":1000.5,"session":"a","after":0,'
        '"append":[[2,512]],"answer":[[3,64]],"delay":333.3}\n'
    )
    timed = tmp_path / "d.jsonl"
    timed.write_text(
        "".join(
            f'{{"timestamp": {at}, {lengths}, "hash_ids": [{block}, {block + 1}]}}\n'
            for block, at in enumerate((3, 3.7, 1e9))
        )
    )
    for path in (trace, str(closed), str(timed)):
        kept = KeptTraces()
        scenarios = [
            load_scenario(None, {**SMALL, "trace.path": path, "trace.speed": speed})
            for speed in (1.0, 3.7, 0.13)
        ]
        first = kept.open(scenarios[0])
        assert len(list(first.requests(64))) > 2
        for scenario in scenarios[1:]:
            at_speed, read = kept.open(scenario), KeptTraces().open(scenario)
            assert at_speed.speed == scenario.trace.speed
            shown, expected = (list(map(_all_of, each.requests(64))) for each in (at_speed, read))
            assert shown == expected
            assert at_speed.facts is first.facts, "nothing was read"
            delays_ns = [each.delay_ns for each in at_speed.requests(64)]
            assert any(delays_ns) == (path == str(closed))
    # What the reader refuses at a speed is refused.
    slow = load_scenario(None, {**SMALL, "trace.path": str(timed), "trace.speed": 0.001})
    with pytest.raises(InputError, match=r"years after the first one's at speed 0\.001"):
        list(kept.open(slow).requests(64))


def _all_of(request: Request) -> tuple[object, ...]:
    return (
        request.number, request.arrival_ns, request.prompt_tokens, request.output_tokens,
        request.prompt_runs, request.prompt_pages, request.ideal_pages, request.session,
        request.priority, request.output_runs, request.after, request.delay_ns,
        request.cached_tokens,
    )  # fmt: skip


def test_traces_that_no_longer_fit_are_forgotten(
    trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptTraces()
    opened = [
        load_scenario(None, {**SMALL, "trace.path": trace, "tiers.page_size_tokens": page})
        for page in (16, 32, 64)
    ]
    traces = []
    for scenario in opened:
        traces.append(kept.open(scenario))
        list(traces[-1].requests(scenario.tiers.page_size_tokens))
    assert kept.open(opened[0]) is traces[0]
    monkeypatch.setattr(sweep_trace, "MOST_PIECES", 10)
    assert kept.open(opened[0]) is traces[0]
    assert kept.open(opened[2]) is not traces[2]


@pytest.mark.parametrize("frozen", [True, False])
def test_what_the_caller_put_aside_stays_there(trace: str, frozen: bool) -> None:
    """And nothing of the sweep's own, where there was nothing."""
    job = job_of(0, load_scenario(None, {**SMALL, "trace.path": trace}))
    gc.unfreeze()
    if frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    (done,) = run_here([job], 1, Lost())
    assert not done.error
    assert gc.get_freeze_count() >= before
    assert bool(gc.get_freeze_count()) == frozen
    gc.freeze()


def test_what_is_wrong_with_a_cell_is_in_its_result(trace: str) -> None:
    scenario = load_scenario(None, {**SMALL, "tiers.l1": "2000tokens", "trace.path": trace})
    done = run_job(job_of(7, scenario))
    assert (done.number, done.figures) == (7, {})
    assert "give a larger --l1" in done.error
    wrong = run_job(job_of(0, scenario)._replace(sources="other"))
    assert "runs other sources of hicache-lab" in wrong.error


def test_a_journal_outlives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    out = str(tmp_path / "s.parquet")
    with Journal(out) as journal:
        assert journal.read() == {}
        journal.add("a", {"hit": 1})
        journal.add("b", {"hit": None})
    path = Path(journal.path)
    path.write_bytes(path.read_bytes()[:-7])
    with Journal(out) as journal:
        assert journal.read() == {"a": {"hit": 1}}
        journal.add("c", {"hit": 0.5})
        assert journal.read() == {"a": {"hit": 1}, "c": {"hit": 0.5}}
        journal.remove()
    assert not path.exists()
    path.write_text("my notes\n")
    with pytest.raises(InputError, match="is no journal of a sweep"):
        Journal(out).read()


def _deadly(job: Job) -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", ["whichever", "joblib"])
def test_a_cell_that_kills_its_workers_ends_the_sweep(
    monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    if workers == "joblib":
        monkeypatch.setattr("sim.forked.may_fork", lambda: False)
    monkeypatch.setattr("sim.sweep_pool.run_job", _deadly)
    lost = Lost()
    jobs = [Job(number, {}, "", "") for number in range(3)]
    with pytest.raises(WorkersLost, match="killed 4 times"):
        list(run_here(jobs, 2, lost))
    end_workers()
    assert lost.workers == 3


def test_rows_are_the_same_where_nothing_may_be_forked(
    trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.forked.may_fork", lambda: False)
    axes = dict([axis_of("tiers.l2=0,1x"), axis_of("restore.policy=cost,always")])
    cells = cells_of(Grid((), [trace], axes, {"tiers.l1": "40000tokens"}))
    jobs = [job_of(each.number, each.scenario) for each in cells]
    try:
        found = sorted(run_here(jobs, 2, Lost()))
    finally:
        end_workers()
    assert found == [run_job(job) for job in jobs]
