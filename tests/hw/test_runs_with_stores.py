"""Real runs whose L3 is a store that is asked by name: each kind of store, folders that outlive a
run, and what cannot be opened. Every page that is read is checked.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from fault_runs import (
    DEVICES,
    PAGE,
    FaultyRun,
    gpu_that_takes,
    scenario_of,
    transfers,
    write_inputs,
)
from store_runs import (
    MODULE,
    STORES,
    folder,
    lookups,
    run_of,
    store_scenario,
    stored,
    to_the_end,
)

from hicache.errors import InputError
from hw.stores.page_order import MEMORY_LAYOUTS
from hw.synthetic import AffineDurations
from hw.tokens import TokenBook
from scenario.load import load_scenario
from scenario.presets import PRESET_NAMES
from traces.page_hash import page_hashes

__all__ = ["folder"]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("device", DEVICES)
def test_every_kind_of_store_is_asked_read_and_written(folder, device, monkeypatch, kind):
    """What the tests below rest on."""
    run = run_of(folder, device, monkeypatch, kind)
    outcome, checked = to_the_end(run)
    for direction, counts in transfers(outcome).items():
        assert counts["operations"] >= 5, direction
        assert counts["failed"] == 0
    assert lookups(run)["done"] >= 5
    assert checked >= 24
    counts, moved = stored(outcome), transfers(outcome)
    assert counts["kind"] == kind
    assert run.store.name in str(counts["what"])
    assert "closed" not in str(counts["what"])
    assert counts["pages_read"] == moved["s2h"]["pages"] > 0
    assert counts["pages_written"] == moved["h2s"]["pages"] > 0
    assert counts["pages_read_of_others"] == counts["pages_at_start"] == 0


@pytest.mark.parametrize("kind", ["file", "dynamic"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_second_run_hits_what_the_first_wrote(folder, device, monkeypatch, kind):
    """Also what this trace asks for once; its result says so, and its record replays. However busy
    the machine is: requests wait for what is read ahead, and L2 has room for it.
    """
    sure = {"prefetch__stop": "wait_complete", "tiers__l2": "100pages"}
    first, _ = to_the_end(run_of(folder, device, monkeypatch, kind, **sure))
    run = run_of(folder, device, monkeypatch, kind, **sure)
    second, _ = to_the_end(run)
    tokens = [outcome.summary["computed_tokens"] for outcome in (first, second)]
    assert tokens[1] < tokens[0] / 2, tokens
    counts = stored(second)
    assert counts["pages_read_of_others"] >= 20
    assert (counts["pages_at_start"] > 20) == (kind == "file")
    assert "reuse_above_ceiling" in " ".join(second.summary["warnings"])
    assert "reuse_above_ceiling" not in " ".join(first.summary["warnings"])


@pytest.mark.parametrize("device", DEVICES)
def test_slots_are_gone_with_their_run(folder, device, monkeypatch):
    computed = []
    for _ in range(2):
        outcome = run_of(folder, device, monkeypatch, "slots").to_the_end()
        computed.append(outcome.summary["computed_tokens"])
        assert stored(outcome)["pages_read_of_others"] == 0
    assert computed[0] / 2 < computed[1] < computed[0] * 2


@pytest.mark.parametrize("layout", [each for each in MEMORY_LAYOUTS if each != "page_first"])
def test_a_folder_is_written_and_read_in_every_layout(folder, monkeypatch, layout):
    write_inputs(folder, clients=4, rounds=2)
    for _ in range(2):
        run = run_of(folder, "cpu", monkeypatch, hw__store_layout=layout)
        outcome, checked = to_the_end(run)
        assert checked >= 12
    assert stored(outcome)["pages_read_of_others"] >= 8


def test_the_files_are_those_of_a_server_with_these_tokens(folder, monkeypatch):
    """Names by the chain of SHA-256 over token ids, the served name, rank 0 of 1; and the bytes of
    a page in the layout page_first.
    """
    run = run_of(folder, "cpu", monkeypatch, hw__store_model="Acme/Tiny 1")
    to_the_end(run)
    there = set(os.listdir(folder / "pages"))
    book = TokenBook(PAGE, 256)
    hit = 0
    for request in run.run.trace.requests(PAGE, "full"):
        tokens = book.tokens(request, request.prompt_tokens).tolist()
        for name in page_hashes(tokens[: request.prompt_tokens], PAGE):
            hit += f"{name}_Acme-Tiny 1_0_1.bin" in there
    assert hit >= 40
    assert {os.path.getsize(folder / "pages" / name) for name in there} == {
        run.assembly.store.store._page_bytes
    }


@pytest.mark.parametrize("preset", [name for name in PRESET_NAMES if name.startswith("sglang")])
def test_the_presets_of_sglang_run_with_a_folder(folder, monkeypatch, preset):
    base = store_scenario(folder)
    scenario = load_scenario(
        None,
        {
            "preset": preset, "trace.path": base.trace.path, "trace.speed": 500.0,
            "load.parallel": 2, "model.name": base.model.name,
            "tiers.page_size_tokens": PAGE, "tiers.l1": "20pages",
            "tiers.l2": "24pages", "tiers.l3": "400pages", "prefetch.threshold_tokens": PAGE,
            "prefetch.limit_fraction": 1.0, "restore.threshold_tokens": 8,
            "scheduler.chunk_tokens": 32, "scheduler.max_running_requests": 2,
            "engine.check_every_steps": 1, "hw.compute": "synthetic", "hw.transfers": "direct",
            "hw.store": "file", "hw.store_path": str(folder / "pages"),
        },
    )  # fmt: skip
    # A prefetch that does not hold its request up has the steps of others to come in.
    steps = gpu_that_takes(AffineDurations(20_000_000, 0, 20_000_000, 0))
    for place in range(2):
        run = FaultyRun(scenario, "cpu", monkeypatch, steps)
        outcome, _ = to_the_end(run)
        assert stored(outcome)["pages_written"] > 0 or place
    # Under best_effort (0.5.9) hardly anything comes in time.
    assert stored(outcome)["pages_read_of_others"] >= (1 if preset == "sglang-0.5.9" else 10)


# ------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("file", {"hw__store_path": ""}, "name its folder, hw.store_path"),
        ("file", {"hw__store_path": "trace.jsonl"}, "trace.jsonl"),
        ("dynamic", {"hw__store_class": ""}, "name its class, hw.store_class"),
        ("dynamic", {"hw__store_class": "json.JSONEncoder"}, "write MODULE:CLASS"),
        ("dynamic", {"hw__store_class": "json:JSONEncoder"}, "it has no batch_exists"),
        ("dynamic", {"hw__store_class": "no_such_module:X"}, "cannot be imported"),
        ("dynamic", {"hw__store_config": "{"}, "hw.store_config: not valid JSON"),
    ],
)
def test_stores_that_cannot_be_opened_are_named(folder, monkeypatch, kind, options, said):
    scenario = store_scenario(folder, kind, **options)
    if options.get("hw__store_path") == "":
        from msgspec.structs import replace

        scenario = replace(scenario, hw=replace(scenario.hw, store_path=""))
    with pytest.raises(InputError, match=said):
        FaultyRun(scenario, "cpu", monkeypatch)


def test_a_folder_that_holds_more_than_l3_is_left_alone(folder, monkeypatch):
    to_the_end(run_of(folder, "cpu", monkeypatch))
    before = sorted(os.listdir(folder / "pages"))
    assert len(before) > 20
    with pytest.raises(InputError, match=r"files would have to be removed.*tiers\.l3 larger"):
        run_of(folder, "cpu", monkeypatch, tiers__l3="20pages")
    assert sorted(os.listdir(folder / "pages")) == before


def test_options_of_another_store_are_named(folder, monkeypatch):
    run = run_of(folder, "cpu", monkeypatch, hw__checksum="crc32", hw__store_class="a:b")
    warnings = run.run.warnings
    run.run.close()
    said = [each for each in warnings if each.startswith("hw.")]
    assert said == [
        "hw.checksum is crc32 but has no effect: hw.store is file",
        "hw.store_class is a:b but has no effect: hw.store is file",
    ]
    run = FaultyRun(scenario_of(folder, hw__store="dynamic"), "cpu", monkeypatch)
    warnings = run.run.warnings
    run.run.close()
    assert [each for each in warnings if each.startswith("hw.store ")] == [
        'hw.store is dynamic but has no effect: there is no L3 whose storage.index is "store"'
    ]


def test_a_server_s_extra_configuration_names_its_class(folder, monkeypatch):
    """Relative to the scenario's folder, as other paths."""
    text = f'{{"backend_name": "x", "module_path": "{MODULE}", "class_name": "InMemory"}}'
    (folder / "extra.json").write_text(text)
    for given in (text, f"@{folder / 'extra.json'}"):
        run = run_of(
            folder, "cpu", monkeypatch, "dynamic", hw__store_class="", hw__store_config=given
        )
        assert run.store.name == f"dynamic store {MODULE}.InMemory"
        run.run.close()
