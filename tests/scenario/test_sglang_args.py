"""The arguments of an SGLang server: what they mean, what is corrected, what is refused."""

from __future__ import annotations

import itertools
import shlex
import tomllib
from pathlib import Path

import pytest

from hicache.errors import InputError
from scenario.load import load_scenario
from scenario.presets import is_allowed
from scenario.records import value_types
from scenario.sglang_args import _STORES, read_server_args, scenario_lines, with_server_args
from scenario.sglang_flags import known_flags, parse_arguments
from scenario.sglang_rules import SGLANG_PRESETS, SGLANG_VERSIONS
from scenario.stores import STORES

ON = "--enable-hierarchical-cache "


def options(text: str, preset: str = "sglang-0.5.20") -> dict[str, object]:
    """What the arguments set; sizes as texts."""
    read = read_server_args(text, preset).options
    return {key: v if isinstance(v, (int, float)) else str(v) for key, v in read.items()}


def notes(text: str, preset: str = "sglang-0.5.20") -> str:
    return "\n".join(read_server_args(text, preset).notes)


# ---------------------------------------------------------------------- the table of arguments


def test_the_table_is_whole() -> None:
    flags = known_flags()
    assert len(flags) > 590
    for name, flag in flags.items():
        assert name.startswith("--")
        assert flag.values in ("0", "1", "?", "+")
        assert flag.versions
    assert {each for flag in flags.values() for each in flag.versions} == set(SGLANG_VERSIONS)
    assert flags["--hicache-ratio"].versions == SGLANG_VERSIONS
    assert flags["--hicache-host-memory-fraction"].versions == ("0.5.23",)
    assert flags["--enable-hierarchical-cache"].values == "0"


# ---------------------------------------------------------------------- what they mean


MEANS = [
    (ON + "--hicache-ratio 2", "tiers.l2", "2x"),
    (ON + "--hicache-ratio=1.5", "tiers.l2", "1.5x"),
    (ON + "--hicache-ratio 2 --hicache-size 100", "tiers.l2", "100GB"),
    ("--enable-hicache --hicache-ratio 3", "tiers.l2", "3x"),
    (ON + "--page-size 64", "tiers.page_size_tokens", 64),
    (ON, "tiers.page_size_tokens", 1),
    (ON, "tiers.l3", "0"),
    (ON + "--hicache-storage-backend file", "tiers.l3", "100x"),
    (ON + "--hicache-storage-backend mooncake", "machine.store", "mooncake"),
    (ON + "--hicache-storage-backend simm", "machine.store", "simm"),
    ("--page-size 64", "tiers.l2", "0"),
    ("--hicache-ratio 2", "tiers.l2", "0"),
    (ON + "--hicache-io-backend direct", "machine.transfer_mode", "dma"),
    (ON + "--hicache-io-backend kernel", "machine.transfer_mode", "kernel"),
    (ON + "--hicache-write-policy write_through", "cache.write_policy", "write_through"),
    ("--radix-eviction-policy lfu", "cache.eviction", "lfu"),
    ("--mem-fraction-static 0.85", "machine.memory_fraction", 0.85),
    ("--max-total-tokens 200000", "tiers.l1", "200000tokens"),
    (
        ON + "--hicache-storage-backend file --hicache-host-memory-mode buffer_only",
        "tiers.l2_mode",
        "buffer_only",
    ),
    (
        ON + "--hicache-storage-backend file --hicache-host-memory-mode buffer_only",
        "tiers.l2",
        "1.2x",
    ),
    (
        ON + "--hicache-storage-backend file --disaggregation-decode-enable-offload-kvcache",
        "offload.decode",
        True,
    ),
    ("--chunked-prefill-size 4096", "scheduler.chunk_tokens", 4096),
    ("--chunked-prefill-size -1", "scheduler.chunk_tokens", 1 << 30),
    ("--max-running-requests 64", "scheduler.max_running_requests", 64),
    ("--enable-mixed-chunk", "scheduler.mixed_chunk", True),
    ("--kv-cache-dtype fp8_e4m3", "model.kv_dtype", "fp8"),
    ("--model-path Qwen/Qwen3-14B", "model.name", "Qwen/Qwen3-14B"),
    ("--model qwen3-4b --model-path Qwen/Qwen3-14B", "model.name", "Qwen/Qwen3-14B"),
    ("--page-size 16 --page-size 32", "tiers.page_size_tokens", 32),
    ("--attention-backend flashmla --page-size 1", "tiers.page_size_tokens", 64),
    ("--attention-backend trtllm_mla --page-size 32", "tiers.page_size_tokens", 32),
]


@pytest.mark.parametrize(("text", "key", "value"), MEANS)
def test_an_argument_means_an_option(text: str, key: str, value: object) -> None:
    preset = "sglang-0.5.23" if "--enable-hicache" in text else "sglang-0.5.20"
    assert options(text, preset)[key] == value


@pytest.mark.parametrize("preset", SGLANG_PRESETS)
def test_everything_set_is_an_option_and_loads(preset: str) -> None:
    text = (
        ON + "--model-path Qwen/Qwen3-8B --tp 2 --page-size 64 --hicache-size 80 --port 30000 "
        "--hicache-storage-backend file --hicache-storage-prefetch-policy timeout "
        "--hicache-storage-backend-extra-config '{\"prefetch_threshold\": 512}' --host 0.0.0.0"
    )
    read = read_server_args(text, preset)
    assert set(read.options) <= set(value_types())
    overrides, _ = with_server_args(text, None, {"preset": preset})
    scenario = load_scenario(None, overrides)
    assert scenario.preset == preset
    assert scenario.tiers.page_size_tokens == 64
    assert read.ignored == ("--port", "--host")


def test_a_whole_command_is_taken() -> None:
    text = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B " + ON + "--page-size 64"
    assert options(text)["tiers.page_size_tokens"] == 64
    assert options("sglang serve --page-size 32")["tiers.page_size_tokens"] == 32


def test_sizes_are_per_rank() -> None:
    text = ON + "--hicache-size 50 --tensor-parallel-size 4"
    read = read_server_args(text)
    assert (read.options["ranks.tp"], str(read.options["tiers.l2"])) == (4, "50GB")
    assert "ranks.tp" not in options(ON + "--hicache-size 50 --tp 1")
    assert not any("--tp-size" in note for note in read.notes)


def extra_config(text: str) -> str:
    return f"--hicache-storage-backend-extra-config '{text}'"


SEGMENT = (
    ON
    + "--hicache-storage-backend mooncake --tp 4 "
    + extra_config('{"global_segment_size": "4gb"}')
)


def test_a_segment_of_mooncake_is_one_rank_s() -> None:
    """With MLA one rank fills the segments of all."""
    for model, gib in (("Qwen/Qwen3-8B", 4), ("deepseek-ai/DeepSeek-V3", 16)):
        found = options(f"{SEGMENT} --model-path {model}")["tiers.l3"]
        assert str(found) == f"{gib << 30}B"


@pytest.mark.parametrize(("layout", "cuts"), [("page_head", True), ("page_first", False)])
def test_heads_are_cut_for_other_servers_in_one_layout_only(layout: str, cuts: bool) -> None:
    text = (
        f"{ON}--hicache-storage-backend file --tp 2 --hicache-mem-layout {layout} "
        + extra_config('{"tp_lcm_size": 8}')
    )
    assert options(text).get("ranks.tp_lcm_size") == (8 if cuts else None)
    assert ("tp_lcm_size 8: without effect" in notes(text)) == (not cuts)


def test_shards_that_do_not_go_into_ranks_are_refused() -> None:
    text = ON + "--hicache-storage-backend file --tp 4 " + extra_config('{"tp_lcm_size": 6}')
    with pytest.raises(InputError, match=r"tp_lcm_size is 6.* a multiple of --tp-size, 4"):
        options(text)


def test_replicas_are_instances_behind_a_router() -> None:
    assert options("--dp 4")["instances"] == 4
    assert "router" not in options("--dp 4 --load-balance-method round_robin")
    assert options("--dp 4 --load-balance-method total_requests")["router"] == "least_loaded"
    said = notes("--dp 4 --load-balance-method total_tokens")
    assert "--load-balance-method total_tokens: not simulated" in said


def test_what_stands_in_the_command_wins_over_the_arguments() -> None:
    given: dict[str, object] = {"tiers.l2": "5x", "seed": 7}
    overrides, said = with_server_args(ON + "--hicache-ratio 2 --port 1", None, given)
    assert (overrides["tiers.l2"], overrides["seed"]) == ("5x", 7)
    assert overrides["preset"] == "sglang-0.5.20"
    assert "sglang: without a part in the cache: --port" in said


def test_the_version_is_that_of_the_scenario_s_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "sglang-0.5.9"\n')
    overrides, _ = with_server_args(ON, str(file), {})
    assert overrides["preset"] == "sglang-0.5.9"
    overrides, _ = with_server_args(ON, str(file), {"preset": "sglang-0.5.23"})
    assert overrides["preset"] == "sglang-0.5.23"


def test_as_a_scenario_file_it_is_the_same(tmp_path: Path) -> None:
    text = ON + "--hicache-ratio 1.5 --page-size 16 --hicache-io-backend direct --port 1"
    file = tmp_path / "server.toml"
    file.write_text("\n".join(scenario_lines(read_server_args(text))))
    overrides, _ = with_server_args(text, None, {})
    assert load_scenario(file) == load_scenario(None, overrides)


def test_a_name_with_quotes_is_written_so_that_it_is_read() -> None:
    name = '/models/my "best" \\one\t'
    lines = scenario_lines(read_server_args(f"--model-path {shlex.quote(name)}"))
    assert tomllib.loads("\n".join(lines))["model"]["name"] == name


@pytest.mark.parametrize("preset", SGLANG_PRESETS)
def test_every_store_has_its_times_or_it_is_said(preset: str) -> None:
    version = SGLANG_VERSIONS[SGLANG_PRESETS.index(preset)]
    stores = _STORES[version].split()
    assert set(stores) >= set(STORES) - {"simm"}
    text = "--hicache-storage-backend-extra-config "
    text += '\'{"backend_name": "a", "module_path": "b", "class_name": "c"}\''
    for store in stores:
        asked = f"{ON} --page-size 64 --hicache-storage-backend {store} {text}"
        found, said = options(asked, preset), notes(asked, preset)
        assert found.get("machine.store") == (store if store in STORES else None)
        assert ("not modelled" in said) == (store not in STORES and store != "file")


def test_a_config_file_comes_before_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("enable-hierarchical-cache: true\nhicache_ratio: 4\npage-size: 16\n")
    found = options(f"--config {file} --page-size 32")
    assert (found["tiers.l2"], found["tiers.page_size_tokens"]) == ("4x", 32)


# ---------------------------------------------------------------------- corrections


LAYOUTS = ("layer_first", "page_first", "page_first_direct")


@pytest.mark.parametrize("preset", SGLANG_PRESETS)
def test_layout_and_io_backend_are_corrected_as_the_server_does(preset: str) -> None:
    becomes = {
        ("layer_first", "kernel"): ("layer_first", "kernel"),
        ("layer_first", "direct"): ("layer_first", "direct"),
        ("page_first", "kernel"): ("page_first", "kernel"),
        ("page_first", "direct"): ("page_first_direct", "direct"),
        ("page_first_direct", "kernel"): ("page_first_direct", "direct"),
        ("page_first_direct", "direct"): ("page_first_direct", "direct"),
    }
    for layout, io, store in itertools.product(LAYOUTS, ("kernel", "direct"), ("", "mooncake")):
        text = ON + f"--hicache-mem-layout {layout} --hicache-io-backend {io} --page-size 64"
        text += f" --hicache-storage-backend {store}" if store else ""
        wanted, mode = becomes[layout, io]
        if store and wanted == "layer_first":
            wanted = "page_first_direct" if mode == "direct" else "page_first"
        found, said = options(text, preset), notes(text, preset)
        assert found["machine.transfer_mode"] == {"kernel": "kernel", "direct": "dma"}[mode]
        assert ("as in SGLang" in said) == ((wanted, mode) != (layout, io)), text
        if wanted != layout:
            assert f"becomes {wanted}" in said
        if "machine.host_layout" in value_types():
            assert found["machine.host_layout"] == wanted


def test_direct_without_a_layout_depends_on_the_version_s_own() -> None:
    text = ON + "--hicache-io-backend direct"
    assert "page_first_direct" in notes(text, "sglang-0.5.20")
    assert "page_first_direct" not in notes(text, "sglang-0.5.9")


def test_other_corrections_are_said() -> None:
    said = notes("--attention-backend trtllm_mha --page-size 8")
    assert "page size 8 becomes 64" in said
    assert "have 16, 32, 64 or 128 tokens" in said
    text = ON + "--page-size 512 --hicache-storage-backend file "
    text += "--hicache-storage-backend-extra-config '{\"prefetch_threshold\": 100}'"
    assert "prefetch_threshold 100: a page is the least: it becomes 512" in notes(text)
    fa3 = ON + "--decode-attention-backend fa3"
    assert options(fa3, "sglang-0.5.9")["machine.transfer_mode"] == "dma"
    assert options(fa3, "sglang-0.5.20")["machine.transfer_mode"] == "kernel"


def test_what_has_no_effect_or_is_not_simulated_is_said() -> None:
    assert "no --enable-hierarchical-cache" in notes("--hicache-ratio 2 --page-size 64")
    assert "no --hicache-storage-backend" in notes(ON + "--hicache-storage-prefetch-policy timeout")
    assert "speculative decoding" in notes("--speculative-algorithm EAGLE")
    for name in ("--enable-dp-attention", "--attn-dp-size 2", "--attention-data-parallel-size 2"):
        assert "attention on replicas of their own" in notes(name, "sglang-0.5.23")
    assert "context parallelism of decode" in notes("--decode-context-parallel-size 2")
    assert "served as they come" in notes("--schedule-policy lpm")
    assert "served as they come" not in notes("--schedule-policy fcfs")
    assert "no limit was given" in notes(ON + "--hicache-storage-backend file")
    assert "overrides --hicache-ratio" in notes(ON + "--hicache-size 10 --hicache-ratio 2")


# ---------------------------------------------------------------------- what is refused


REFUSED = [
    ("--hicache-ratoi 2", "unknown argument --hicache-ratoi (did you mean --hicache-ratio?)"),
    ("--enable-hierarchical-cach", "did you mean --enable-hierarchical-cache?"),
    ("--hicache-size", "--hicache-size needs a value"),
    ("--hicache-ratio --page-size 64", "--hicache-ratio needs a value"),
    (ON + "true", "'true' stands behind no argument"),
    ("--enable-hierarchical-cache=yes", "takes no value, and 'yes' was given"),
    ("hicache-ratio 2", "'hicache-ratio' is no argument"),
    ("--hicache-ratio '2", "No closing quotation"),
    (ON + "--hicache-ratio two", "--hicache-ratio is 'two': it must be a number"),
    (ON + "--hicache-ratio 0", "--hicache-ratio is 0: it must be a number above 0"),
    (ON + "--hicache-ratio nan", "it must be a number above 0"),
    (ON + "--hicache-size 1.5", "--hicache-size is '1.5': it must be a whole number"),
    ("--page-size 0", "--page-size is 0: it must be 1 or more"),
    (ON + "--hicache-write-policy back", "takes write_back, write_through, write_thr"),
    (ON + "--hicache-storage-backend s3", "takes file, sim, mooncake"),
    (ON + "--hicache-storage-backend dynamic", "lacks backend_name, module_path, class_name"),
    ("--radix-eviction-policy tlru", "SGLang 0.5.20 takes lru, lfu, slru, priority"),
    ("--disable-radix-cache", "without a prefix cache there is nothing to hit"),
    ("--kv-cache-dtype fp4_e2m1", "fp4_e2m1 is not in this version"),
    (ON + "--hicache-host-memory-fraction 0.5", "SGLang 0.5.20 has no"),
    (ON + "--hicache-host-memory-mode buffer_only", "needs a --hicache-storage-backend"),
    ("--config none.yaml", "none.yaml: No such file"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_what_is_wrong_is_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_server_args(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_one_version_has_another_may_not() -> None:
    with pytest.raises(InputError, match=r"SGLang 0\.5\.9 has no --hicache-host-memory-mode"):
        read_server_args(ON + "--hicache-host-memory-mode cache", "sglang-0.5.9")
    with pytest.raises(InputError, match=r"does not start with an L2 smaller than L1"):
        read_server_args(ON + "--hicache-ratio 0.5", "sglang-0.5.9")
    assert options(ON + "--hicache-ratio 0.5", "sglang-0.5.20")["tiers.l2"] == "0.5x"
    buffer = ON + "--hicache-host-memory-mode buffer_only --hicache-storage-backend file "
    with pytest.raises(InputError, match=r"0\.5\.20 does not start with .* write_back"):
        read_server_args(buffer + "--hicache-write-policy write_back")


def test_buffer_only_is_written_through() -> None:
    text = ON + "--hicache-host-memory-mode buffer_only --hicache-storage-backend file "
    text += "--hicache-ratio 0.5 --page-size 64 "
    found = options(text + "--hicache-write-policy write_back", "sglang-0.5.23")
    assert found["cache.write_policy"] == "write_through"
    assert (found["tiers.l2_mode"], found["tiers.l2"]) == ("buffer_only", "0.5x")
    said = notes(text + "--hicache-write-policy write_back", "sglang-0.5.23")
    assert "write_back becomes write_through, as in SGLang" in said
    overrides, _ = with_server_args(text, None, {})
    assert load_scenario(None, overrides).tiers.l2_mode == "buffer_only"
    assert options(ON + "--hicache-host-memory-mode cache").get("tiers.l2_mode") is None


def test_a_decode_server_that_offloads_has_a_staging_pool_alone() -> None:
    text = "--page-size 64 --hicache-ratio 0.5 --disaggregation-decode-enable-offload-kvcache "
    found = options(text + "--hicache-storage-backend file")
    assert (found["tiers.l2"], found["tiers.l3"]) == ("0.5x", "100x")
    assert (found["tiers.l2_mode"], found["cache.write_policy"]) == ("buffer_only", "none")
    assert found["offload.decode"] is True
    assert "L2 is its staging pool" in notes(text + "--hicache-storage-backend file")
    assert options(text)["tiers.l3"] == "0"
    assert "no --enable-hierarchical-cache" in notes(text)


def test_another_preset_has_no_arguments() -> None:
    with pytest.raises(InputError, match=r"'mini-hicache'.*sglang-0\.5\.9"):
        read_server_args(ON, "mini-hicache")


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("--hicache-write-policy write_back", "cache.write_policy", "write_back"),
        (
            "--hicache-write-policy write_through_selective",
            "cache.write_policy",
            "write_through_selective",
        ),
    ],
)
def test_another_cache_than_was_asked_for_is_never_simulated(
    flag: str, key: str, value: str
) -> None:
    if is_allowed(key, value):
        assert options(ON + flag)[key] == value
        return
    with pytest.raises(InputError) as caught:
        options(ON + flag)
    assert f'{key} = "{value}" is not in this version' in str(caught.value)


def test_values_that_begin_with_one_dash_are_values() -> None:
    assert parse_arguments("--chunked-prefill-size -1", "0.5.20") == {
        "--chunked-prefill-size": ["-1"]
    }
    assert parse_arguments("--cuda-graph-bs 1 2 4 --port 5", "0.5.9") == {
        "--cuda-graph-bs": ["1", "2", "4"],
        "--port": ["5"],
    }
