"""Scenario files: what they mean, what wins, how they are written, and what every mistake says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.errors import InputError
from hicache.options import CacheOptions, RestoreOptions, SchedulerOptions
from scenario.load import load_scenario, parse_assignments
from scenario.presets import PRESET_NAMES, PRESETS, preset_text
from scenario.records import (
    Scenario,
    digest,
    dump_toml,
    record_digest,
    value_types,
    values,
)
from scenario.sizes import AUTO, ZERO, Size


def write(folder: Path, text: str) -> Path:
    file = folder / "run.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_nothing_given_is_the_default_scenario() -> None:
    scenario = load_scenario(None)
    assert scenario == Scenario()
    assert scenario.preset == "mini-hicache"
    assert (scenario.cache, scenario.restore) == (CacheOptions(), RestoreOptions())
    assert scenario.scheduler == SchedulerOptions()
    assert (scenario.tiers.l1, scenario.tiers.l2, scenario.tiers.l3) == (AUTO, Size(2, "x"), ZERO)


def test_a_file_with_a_bit_of_everything(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        preset = "block-lru"
        seed = 7
        trace = { path = "traces/one.jsonl", speed = 2 }
        restore.policy = "threshold"
        [model]
        name = "qwen/qwen3-14b"
        kv_dtype = "fp8"
        [tiers]
        page_size_tokens = 512
        l1 = "40 GiB"
        l2 = "1.5TiB"
        l3 = 0
        """,
    )
    scenario = load_scenario(file)
    assert scenario.seed == 7
    assert scenario.trace.path == str(tmp_path / "traces" / "one.jsonl")
    assert scenario.trace.speed == 2.0
    assert isinstance(scenario.trace.speed, float)
    assert scenario.model.name == "Qwen3-14B"
    assert scenario.tiers.l2 == Size(15, "TiB", 1)
    assert scenario.cache.pages == "partial"
    assert scenario.restore.policy == "threshold"


def test_the_command_line_beats_the_file_and_the_file_the_preset(tmp_path: Path) -> None:
    file = write(tmp_path, 'preset = "block-lru"\ncache.outputs = "cached"\nseed = 1\n')
    scenario = load_scenario(file, {"seed": 2, "restore.policy": "never"})
    assert scenario.cache.pages == "partial"
    assert scenario.cache.outputs == "cached"
    assert scenario.restore.policy == "never"
    assert scenario.seed == 2
    # The preset itself may come from the command line; the file still beats it.
    other = load_scenario(file, {"preset": "mini-hicache"})
    assert (other.cache.pages, other.cache.outputs) == ("full", "cached")


def test_paths_belong_to_where_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    file = write(
        folder,
        'trace.path = "../t.jsonl"\nmodel.name = "config.json"\nmachine.profile = "./mine.json"\n',
    )
    scenario = load_scenario(os.path.relpath(file))
    assert scenario.trace.path == str(tmp_path / "t.jsonl")
    assert scenario.model.name == str(folder / "config.json")
    assert scenario.machine.profile == str(folder / "mine.json")
    assert load_scenario(file, {"trace.path": "t.jsonl"}).trace.path == str(elsewhere / "t.jsonl")
    assert load_scenario(None, {"machine.profile": "NVIDIA-H200"}).machine.profile == "nvidia-h200"


FILE_MISTAKES = [
    ("cach = 1", "unknown key cach"),
    ('policy = "cost"', "unknown key policy (did you mean restore.policy?); outside the tables"),
    ("[tier]\nl1 = 1", "unknown table [tier] (did you mean tiers?); tables are trace, load"),
    (
        '[restore]\npolicey = "cost"',
        "unknown key restore.policey (did you mean restore.policy?); [restore] has policy, thr",
    ),
    ("[cache]\nnothing_like_it = 1", "unknown key cache.nothing_like_it; [cache] has pages"),
    ("[cache.deep]\na = 1", "unknown key cache.deep"),
    ('cache = "lru"', 'cache is "lru": cache is a table, write [cache]'),
    (
        '[restore]\npolicy = "sometimes"',
        'restore.policy is "sometimes": it must be "cost", "meet", "always", "never" or '
        '"threshold"',
    ),
    ("[restore]\npolicy = 3", "restore.policy is 3: it must be"),
    ("[restore]\npolicy = [1]", "restore.policy is [1]: it must be"),
    ('[restore]\noverlap = "yes"', 'restore.overlap is "yes": it must be true or false'),
    ("[restore]\nprobe_every = 1.5", "restore.probe_every is 1.5: it must be a whole number"),
    ("[restore]\nprobe_every = true", "restore.probe_every is true: it must be a whole number"),
    ("[restore]\nprobe_every = -1", "restore.probe_every is -1: it must not be negative"),
    ("[cache]\nwrite_backlog_fraction = 1.2", "it must lie between 0 and 1"),
    ("[trace]\nspeed = 0", "trace.speed is 0.0: it must be greater than 0"),
    ("[trace]\nspeed = nan", "trace.speed is nan: it must be a finite number"),
    ("[trace]\nspeed = inf", "trace.speed is inf: it must be a finite number"),
    ("[trace]\npath = 3", "trace.path is 3: it must be a text"),
    ("[trace]\npath = 2026-01-01", "trace.path is 2026-01-01: it must be a text"),
    ("[trace]\nblock_tokens = -512", "trace.block_tokens is -512: it must not be negative"),
    ("[machine]\nmemory_fraction = 1.5", "machine.memory_fraction is 1.5: it must lie above 0"),
    ('[tiers]\nl2 = "-1GiB"', "tiers.l2 is -1GiB: a size must not be negative"),
    ("[tiers]\nl2 = 40", "tiers.l2 is 40: 40 of what?"),
    ("[tiers]\npage_size_tokens = 0", "tiers.page_size_tokens is 0: it must be greater than 0"),
    ('[tiers]\nl1 = "2x"', "tiers.l1 is 2x: a multiple of L1 cannot say how large L1 is"),
    ("[tiers]\nl1 = 0", "tiers.l1 is 0: attention reads L1"),
    ('[tiers]\nl2 = "auto"', 'tiers.l2 is auto: only L1 has an "auto"'),
    (
        '[tiers]\nl2 = 0\nl3 = "1TiB"',
        "tiers.l3 is 1TiB but tiers.l2 is 0: pages reach L3 through L2, so an L3 needs an L2",
    ),
    ("seed = -1", "seed is -1: it must not be negative"),
    ('mode = "fast"', 'mode is "fast": it must be "timed" or "untimed"'),
    ("[engine]\ncheck_every_steps = -1", "engine.check_every_steps is -1"),
    ('[model]\nname = "qwen3-8"', "no known model (did you mean Qwen3-8B?); known are Qwen3-4B"),
    ('[model]\nkv_dtype = "int8"', 'model.kv_dtype is "int8": it must be "auto", "bf16", "fp16"'),
    ('preset = "mini"', "preset is 'mini': no such preset"),
    (
        'preset = "sglang-0.5.21"',
        "there are: mini-hicache, block-lru, sglang-0.5.9, sglang-0.5.20, sglang-0.5.23",
    ),
    ("seed = \nmode = 1", "not valid TOML: Invalid value (at line 1, column 8)"),
    ("seed = 1\nseed = 2\n", "not valid TOML: Cannot overwrite a value (at line 2"),
]


@pytest.mark.parametrize(("text", "says"), FILE_MISTAKES)
def test_a_mistake_in_a_file_is_one_line_that_names_it(
    tmp_path: Path, text: str, says: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_scenario(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"tiers.l2": "-1"}, "command line: tiers.l2 is -1: a size must not be negative"),
        ({"tiers.l4": "1x"}, "command line: unknown key tiers.l4 (did you mean tiers.l"),
        ({"tiers": "1x"}, "command line: tiers is a table: name one of its keys, page_size"),
        ({"restore.policy": "maybe"}, 'command line: restore.policy is "maybe": it must be "cost"'),
        ({"seed": "1"}, 'command line: seed is "1": it must be a whole number'),
        ({"trace.speed": -1}, "command line: trace.speed is -1.0: it must be greater than 0"),
        ({"tiers.l2": "0", "tiers.l3": "1x"}, "command line: tiers.l3 is 1x but tiers.l2 is 0"),
    ],
)
def test_a_mistake_on_the_command_line_says_so(
    tmp_path: Path, overrides: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(write(tmp_path, "seed = 3\n"), overrides)
    assert says in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        load_scenario(tmp_path / "none.toml")
    with pytest.raises(InputError, match="Is a directory"):
        load_scenario(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"preset = 'caf\xe9'")
    with pytest.raises(InputError, match=r"latin\.toml: not a text in UTF-8 \(byte 13\)"):
        load_scenario(tmp_path / "latin.toml")


def test_assignments_are_read_as_their_keys_ask() -> None:
    overrides = parse_assignments(
        [
            "restore.policy=always",
            "restore.probe_every = 5",
            "restore.overlap=false",
            "trace.speed=0.5",
            "tiers.l2=2x",
            "tiers.l3=0",
            'trace.path="a=b.jsonl"',
        ]
    )
    assert overrides == {
        "restore.policy": "always",
        "restore.probe_every": 5,
        "restore.overlap": False,
        "trace.speed": 0.5,
        "tiers.l2": "2x",
        "tiers.l3": "0",
        "trace.path": "a=b.jsonl",
    }
    assert load_scenario(None, overrides).restore.probe_every == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("restore.policy", "'restore.policy' is no assignment; write KEY=VALUE"),
        ("=3", "is no assignment"),
        ("restore.polcy=cost", "unknown key restore.polcy (did you mean restore.policy?)"),
    ],
)
def test_bad_assignments(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_assignments([text])
    assert says in str(caught.value)


def test_an_assignment_of_the_wrong_type_is_refused_when_loaded() -> None:
    with pytest.raises(InputError, match='probe_every is "often": it must be a whole number'):
        load_scenario(None, parse_assignments(["restore.probe_every=often"]))
    with pytest.raises(InputError, match='overlap is "1": it must be true or false'):
        load_scenario(None, parse_assignments(["restore.overlap=1"]))


def test_a_dump_has_every_key_once_in_order() -> None:
    text = dump_toml(Scenario())
    head = 'preset = "mini-hicache"\nmode = "timed"\nseed = 0\ninstances = 1\n'
    assert text.startswith(f'{head}router = "round_robin"\n\n[trace]\n')
    lines = [line for line in text.splitlines() if " = " in line]
    assert len(lines) == len(value_types()) == len(list(values(Scenario())))
    assert "#" not in text
    assert text.endswith("\n")


numbers = st.floats(min_value=1e-9, max_value=1e12)
sizes = st.sampled_from(["1.5TiB", "3GB", "0.25x", "12pages", "77tokens"])
overrides_of_any_kind = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from(list(PRESETS)),
        "mode": st.sampled_from(["timed", "untimed"]),
        "seed": st.integers(0, 2**63 - 1),
        "trace.path": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        "trace.block_tokens": st.integers(0, 10**6),
        "trace.speed": numbers,
        "model.name": st.sampled_from(["qwen3-8b", "DeepSeek-V3", "Qwen/Qwen3-30B-A3B"]),
        "model.kv_dtype": st.sampled_from(["auto", "bf16", "fp16", "fp8"]),
        "machine.profile": st.sampled_from(["nvidia-h200", "./a b.json", '~"quoted"\\.json']),
        "machine.memory_fraction": st.floats(0.01, 1.0),
        "tiers.page_size_tokens": st.integers(1, 4096),
        "tiers.l1": st.sampled_from(["auto", "40GiB", "100pages"]),
        "tiers.l2": sizes,
        "tiers.l3": sizes,
        "cache.eviction": st.sampled_from(["lru", "slru", "priority"]),
        "cache.write_backlog_fraction": st.floats(0, 1),
        "restore.policy": st.sampled_from(["cost", "meet", "always", "never", "threshold"]),
        "restore.overlap": st.booleans(),
        "restore.prior_host_gib_per_s": numbers,
        "scheduler.chunk_tokens": st.integers(1, 10**6),
        "scheduler.mixed_chunk": st.booleans(),
        "engine.page_ids": st.sampled_from(["counted", "named"]),
    },
)


@settings(max_examples=60)
@given(overrides_of_any_kind)
def test_a_dump_loads_as_an_equal_scenario(
    tmp_path_factory: pytest.TempPathFactory, overrides: dict[str, object]
) -> None:
    scenario = load_scenario(None, overrides)
    text = dump_toml(scenario)
    file = tmp_path_factory.getbasetemp() / "dumped.toml"
    file.write_bytes(text.encode())
    again = load_scenario(file)
    assert again == scenario
    assert dump_toml(again) == text
    assert digest(again) == digest(scenario)


def test_digests_tell_scenarios_apart() -> None:
    assert len(digest(Scenario())) == 64
    assert digest(load_scenario(None, {"seed": 1})) != digest(Scenario())
    assert digest(load_scenario(None, {"model.name": "QWEN/qwen3-8b"})) == digest(Scenario())


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_a_preset_as_text_is_a_scenario_file_of_the_same_options(
    tmp_path: Path, preset: str
) -> None:
    text = preset_text(preset)
    assert text.startswith("[cache]\n")
    scenario = load_scenario(None, {"preset": preset})
    from_text = load_scenario(write(tmp_path, text))
    assert (from_text.cache, from_text.restore) == (scenario.cache, scenario.restore)


def test_block_lru_counts_blocks() -> None:
    cache = load_scenario(None, {"preset": "block-lru"}).cache
    assert (cache.pages, cache.hit_cap, cache.outputs) == ("partial", "none", "dropped")
    assert (cache.eviction, cache.eviction_granularity) == ("lru", "page")


def test_every_option_of_the_engine_can_be_set() -> None:
    for table, record in (
        ("cache", CacheOptions),
        ("restore", RestoreOptions),
        ("scheduler", SchedulerOptions),
    ):
        names = {key.split(".")[1] for key in value_types() if key.startswith(f"{table}.")}
        assert names == set(record.__dataclass_fields__)


def test_a_records_digest_follows_what_is_set_and_not_where_files_lie(tmp_path):
    def digest_of(**options):
        given = {key.replace("__", "."): value for key, value in options.items()}
        return record_digest(load_scenario(None, given))

    here = digest_of(trace__path=str(tmp_path / "a.jsonl"), tiers__l2="3x")
    assert here == digest_of(trace__path="/elsewhere/a.jsonl", tiers__l2="3x")
    assert here != digest_of(trace__path=str(tmp_path / "a.jsonl"), tiers__l2="4x")
    # Said or not, the usual value is the same.
    assert digest_of() == digest_of(load__rate=0.0, hw__checksum="none")
    assert digest_of(model__name="Qwen3-4B") != digest_of()
