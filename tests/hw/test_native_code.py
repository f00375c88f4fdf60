"""What a compiled library is made of: its name says so, and no other Python's headers are in it."""

from __future__ import annotations

import runpy
import shutil
import sysconfig

import pytest
from file_store_helpers import ROOT
from native_calls import compiled_loop

from hw import native_code
from hw.storage import native, plan_native
from hw.transfers import front_native

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
    headers = {"page_runs.h"} if module is not native else set()
    assert {source.name for source in sources} == {module.SOURCE.name} | headers


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
