"""What a compiled library is made of, when it is made, and when it is used: its name says of which
sources, and no other Python's headers are in it.
"""

from __future__ import annotations

import runpy
import shutil
import sysconfig
from pathlib import Path

import pytest
from file_store_helpers import ROOT
from native_calls import compile_to, compiled_loop
from native_stores import compiled, made

from hw import native_code
from hw.storage import native, plan_native
from hw.transfers import front_native

__all__ = ["compiled", "made"]

OF_PYTHON = pytest.mark.parametrize("module", [plan_native, front_native], ids=["plan", "front"])


@OF_PYTHON
def test_headers_of_another_python_are_not_taken(tmp_path, monkeypatch, tmp_path_factory, module):
    compiled_loop(tmp_path_factory.getbasetemp() / "native")  # or there is no compiler
    script = runpy.run_path(str(ROOT / "scripts/compile_loop.py"))
    (tmp_path / "Python.h").write_text("#error another one's\n")
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "none"))
    made = tmp_path / "made.so"
    script["make"](module.SOURCE, made, module.open_library)
    assert made.exists()


@OF_PYTHON
def test_each_python_has_a_library_of_its_own(monkeypatch, module):
    mine = module.library_path()
    names = {"SOABI": "cpython-313t-x86_64-linux-gnu"}  # of another layout than 3.13 without t
    monkeypatch.setattr(sysconfig, "get_config_var", names.get)
    assert module.library_path() != mine


@pytest.mark.parametrize("module", [native, plan_native, front_native])
def test_each_source_that_a_library_is_made_of_changes_its_name(tmp_path, monkeypatch, module):
    shutil.copytree(ROOT / "hw", tmp_path / "hw", ignore=shutil.ignore_patterns("*.py"))
    monkeypatch.setattr(module, "SOURCE", tmp_path / module.SOURCE.relative_to(ROOT))
    names = {module.library_path()}
    sources = native_code.sources_of(module.SOURCE)
    for number, source in enumerate(sources, start=1):
        with source.open("a") as file:
            file.write("\n")
        names.add(module.library_path())
        assert len(names) == 1 + number, source
    headers = {native: [], plan_native: ["page_runs.h"]}
    wanted = headers.get(module, ["page_runs.h", "front_layers.h"])
    assert [source.name for source in sources] == [module.SOURCE.name, *wanted]


def test_headers_of_headers_count_and_one_that_is_missing_is_said(tmp_path, capsys, monkeypatch):
    source = tmp_path / "a.c"
    source.write_text('#include <stdio.h>\n#include "b.h"\n  # include "c/c.h" /* too */\n')
    (tmp_path / "c").mkdir()
    (tmp_path / "b.h").write_text('#include "c/c.h"\n')
    (tmp_path / "c/c.h").write_text('#include "../b.h"\n#include "d.h"\n')
    (tmp_path / "c/d.h").write_text("")
    found = [path.relative_to(tmp_path).as_posix() for path in native_code.sources_of(source)]
    assert found == ["a.c", "b.h", "c/c.h", "c/d.h"]
    (tmp_path / "c/d.h").unlink()
    monkeypatch.delenv("HICACHE_COMPILED", raising=False)
    assert native_code.loaded("it", lambda: native_code.path_of(source), lambda path: path) is None
    assert "it does not load" in capsys.readouterr().err


def test_the_library_is_made_once_and_again_for_another_source(compiled, tmp_path, monkeypatch):
    folder = tmp_path / "a" / "b"
    assert "loop for L3 files: made" in compile_to(folder).stdout
    assert "up to date" in compile_to(folder).stdout
    modules = native, plan_native, front_native
    assert set(folder.iterdir()) == {module.library_path(folder) for module in modules}
    changed = tmp_path / "loop.c"
    changed.write_text(native.SOURCE.read_text() + "\n")
    monkeypatch.setattr(native, "SOURCE", changed)
    assert not native.library_path(folder).exists()


def test_without_a_compiler_that_works_one_line_says_so(tmp_path):
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'error: broken' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = compile_to(tmp_path / "made", CC=str(compiler))
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "No compiled loop for L3 files: the C compiler fails: error: broken. Small pages are read "
        "more slowly.",
        "No compiled plan for L3 files: the C compiler fails: error: broken. Reads of many small "
        "pages begin later.",
        "No compiled front of copies: the C compiler fails: error: broken. Small copies take "
        "longer.",
    ]
    assert list((tmp_path / "made").iterdir()) == []


def test_it_is_used_where_it_is_and_never_in_the_way(compiled, tmp_path, monkeypatch, capsys):
    path = tmp_path / "loop.so"
    monkeypatch.setattr(native, "library_path", lambda: path)
    monkeypatch.setenv("HICACHE_COMPILED", "1")
    asked = native.library.__wrapped__
    assert asked() is None
    path.write_bytes(b"no library")
    assert asked() is None
    assert capsys.readouterr().err.count("the compiled loop does not load") == 1
    path.write_bytes(Path(compiled._name).read_bytes())
    monkeypatch.setenv("HICACHE_COMPILED", "0")
    assert asked() is None
    monkeypatch.delenv("HICACHE_COMPILED")
    # A file that once failed to load may be remembered as such: another name is another file.
    fresh = path.rename(tmp_path / "fresh.so")
    monkeypatch.setattr(native, "library_path", lambda: fresh)
    assert asked() is not None
