"""`hicache preset`, and `hicache replay --sglang-args` from the command line to the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import hicache, line, write_lines

from cli.main import run
from scenario.load import load_scenario
from scenario.presets import PRESET_NAMES, missing_rules
from scenario.records import value_types

Capture = pytest.CaptureFixture[str]
SERVER = "--enable-hierarchical-cache --hicache-ratio 2 --page-size 64"


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> Any:
    """Types a command and returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "good.jsonl", line([0, 1], 1000), line([0, 1, 2], 1500, 10))

    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hicache", *words])
        code = run()
        said = capsys.readouterr()
        return code, said.out, said.err

    return typed


def summary(folder: str = "out") -> dict[str, Any]:
    return json.loads(Path(folder, "summary.json").read_text())


def test_list_show_and_diff(type_in: Any, tmp_path: Path) -> None:
    code, said, _ = type_in("preset", "list")
    assert (code, [each.split()[0] for each in said.splitlines()]) == (0, list(PRESET_NAMES))
    code, said, _ = type_in("preset", "show", "sglang-0.5.20")
    assert code == 0
    (tmp_path / "mine.toml").write_text(said)
    assert load_scenario(tmp_path / "mine.toml").preset == "sglang-0.5.20"
    code, said, _ = type_in("preset", "diff", "mini-hicache", "sglang-0.5.20")
    assert code == 0
    assert "restore.policy" in said


def test_a_preset_that_is_none_is_one_line(type_in: Any) -> None:
    for words in (("show", "sglang"), ("diff", "mini-hicache", "sglang-1.0")):
        code, said, complained = type_in("preset", *words)
        assert (code, said, complained.count("\n")) == (2, "", 1)
        assert complained.startswith("hicache: error: ")
        assert "there are: mini-hicache" in complained


def test_arguments_become_a_scenario_file(type_in: Any, tmp_path: Path) -> None:
    code, said, _ = type_in("preset", "args", f"{SERVER} --port 1", "--preset", "sglang-0.5.9")
    assert code == 0
    assert "# without a part in the cache: --port" in said
    (tmp_path / "server.toml").write_text(said)
    scenario = load_scenario(tmp_path / "server.toml")
    assert (scenario.preset, scenario.tiers.page_size_tokens) == ("sglang-0.5.9", 64)
    words = (*SERVER.split(), "--port", "1")
    assert type_in("preset", "args", *words, "--preset", "sglang-0.5.9") == (0, said, "")
    code, _, complained = type_in("preset", "args", "--hicache-ratoi", "2")
    assert (code, complained.count("\n")) == (2, 1)
    assert "did you mean --hicache-ratio?" in complained


def test_a_replay_with_a_server_s_arguments_is_that_of_its_options(type_in: Any) -> None:
    flags = ("--l1", "4000tokens", "--quiet")
    code, _, complained = type_in(
        "replay", "good.jsonl", *flags, "--out", "out", "--sglang-args", f"{SERVER} --port 3000"
    )
    assert code == 0
    assert "warning: sglang: without a part in the cache: --port" in complained
    found = summary()
    assert (found["preset"], found["page_size_tokens"]) == ("sglang-0.5.20", 64)
    assert found["tiers"]["host"]["capacity_pages"] in (124, 125)  # rounded down, or one more
    assert found["tiers"]["storage"]["capacity_pages"] == 0
    lacks = [
        each for each in found["warnings"] if "rules of SGLang are not in this version" in each
    ]
    assert bool(lacks) == bool(missing_rules("sglang-0.5.20"))
    # The same options, written out.
    code, _, _ = type_in(
        "replay", "good.jsonl", *flags, "--out", "again", "--preset", "sglang-0.5.20",
        "--page-size", "64", "--l2", "2x",
    )  # fmt: skip
    assert code == 0
    again = summary("again")
    for key in ("cached_tokens_total", "ttft_ms", "bytes", "tiers"):
        assert again[key] == found[key]
    first, second = (Path(each, "scenario.toml").read_text() for each in ("out", "again"))
    assert first == second


def test_a_flag_beside_the_arguments_wins(type_in: Any) -> None:
    code, _, _ = type_in(
        "replay", "good.jsonl", "--l1", "4000tokens", "--quiet", "--out", "out",
        "--sglang-args", SERVER, "--page-size", "128", "--set", "cache.eviction=lfu",
    )  # fmt: skip
    assert code == 0
    assert summary()["page_size_tokens"] == 128
    assert load_scenario("out/scenario.toml").cache.eviction == "lfu"


MISTAKES = {
    "--hicache-ratoi 2": "unknown argument --hicache-ratoi (did you mean --hicache-ratio?)",
    "--enable-hierarchical-cache --hicache-ratio x": "--hicache-ratio is 'x'",
    "--model-path Qwen/Qwen9": "no known model",
    "--enable-hierarchical-cache --hicache-storage-backend-extra-config @none.toml": "none.toml",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_the_arguments_is_one_line(type_in: Any, tmp_path: Path, text: str) -> None:
    code, said, complained = type_in("replay", "good.jsonl", "--sglang-args", text)
    assert (code, said, complained.count("\n")) == (2, "", 1)
    assert MISTAKES[text] in complained
    assert not (tmp_path / "results").exists()


def test_extra_config_reaches_the_options_that_there_are(type_in: Any, tmp_path: Path) -> None:
    (tmp_path / "extra.toml").write_text('prefetch_threshold = 128\nmax_size = "1Gi"\n')
    code, said, _ = type_in(
        "preset", "args", f"{SERVER} --hicache-storage-backend file "
        "--hicache-storage-backend-extra-config @extra.toml",
    )  # fmt: skip
    assert code == 0
    assert f'l3 = "{1 << 30}B"' in said
    if "prefetch.threshold_tokens" in value_types():
        assert "threshold_tokens = 128" in said
    else:
        assert "not in this version" in said


def test_the_command_that_is_installed_knows_them(tmp_path: Path) -> None:
    write_lines(tmp_path / "good.jsonl", line([0, 1], 1000))
    done = hicache(
        "replay", "good.jsonl", "--untimed", "--l1", "4000tokens", "--out", "out", "--sglang-args",
        "--hicache-ratoi 2", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "did you mean --hicache-ratio?" in done.stderr
    assert not (tmp_path / "out").exists()
