"""The extra configuration of a storage back-end: JSON text, or a file in three formats."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hicache.errors import InputError
from scenario.sglang_config import read_extra_config

AS_JSON = '{"prefetch_threshold": 512, "prefetch_timeout_base": 3, "max_size": "1Gi", "tag": "a"}'
FORMS = {
    "c.json": AS_JSON,
    "c.toml": 'prefetch_threshold = 512\nprefetch_timeout_base = 3\nmax_size = "1Gi"\ntag = "a"\n',
    "c.yaml": "prefetch_threshold: 512\nprefetch_timeout_base: 3\nmax_size: 1Gi\ntag: a\n",
    "c.yml": AS_JSON,
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_says_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FORMS[name])
    found = read_extra_config(f"@{tmp_path / name}", "0.5.20")
    assert found == read_extra_config(AS_JSON, "0.5.20")
    assert found.options == {"prefetch.threshold_tokens": 512, "prefetch.timeout_base_s": 3.0}
    assert found.store == {"max_size": "1Gi", "tag": "a"}
    assert str(found.l3) == f"{1 << 30}B"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ('{"max_size": "200G"}', 200 * 10**9),
        ('{"max_size": 12345678}', 12345678),
        ('{"global_segment_size": "4gb"}', 4 << 30),
        ('{"max_size": "0"}', None),
        ("{}", None),
    ],
)
def test_how_large_the_store_is(text: str, size_bytes: int | None) -> None:
    size = read_extra_config(text, "0.5.20").l3
    assert (None if size is None else str(size)) == (size_bytes and f"{size_bytes}B")


WRONG = [
    ("{", "not valid JSON"),
    ("c.json", "a file is written as @FILE"),
    ("[1]", "must be an object"),
    ("@none.json", "none.json: No such file"),
    ("@c.ini", "it must end in .json, .toml, .yaml or .yml"),
    ("@bad.toml", "bad.toml: not valid TOML"),
    ("@bad.yaml", "bad.yaml: not valid YAML"),
    ("@bad.json", "bad.json: not valid JSON"),
    ('{"prefetch_threshold": "512"}', "prefetch_threshold is '512': it must be a whole number"),
    ('{"prefetch_threshold": true}', "it must be a whole number"),
    ('{"prefetch_timeout_max": -1}', "must not be negative"),
    ('{"prefetch_treshold": 512}', "unknown key prefetch_treshold (did you mean prefetch_"),
    ('{"max_size": "big"}', "max_size is 'big': it must be a size"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_what_is_wrong_is_one_line(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bad.toml", "bad.yaml", "bad.json"):
        (tmp_path / name).write_text("a: [1\n")
    with pytest.raises(InputError) as caught:
        read_extra_config(text, "0.5.20")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("--hicache-storage-backend-extra-config")


def test_without_pyyaml_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text(FORMS["c.yaml"])
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match=r"YAML needs PyYAML: pip install 'hicache-lab\[yaml\]'"):
        read_extra_config(f"@{tmp_path / 'c.yaml'}", "0.5.20")


def test_an_old_server_ignores_what_it_does_not_know() -> None:
    found = read_extra_config('{"prefetch_timeout_max": 5}', "0.5.9")
    assert found.options == {}
    assert "0.5.9 does not know it" in found.notes[0]
    assert read_extra_config('{"prefetch_timeout_max": 5}', "0.5.20").options == {
        "prefetch.timeout_max_s": 5.0
    }
