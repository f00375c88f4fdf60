"""When the compiled engine is taken, and when the sources are. Nothing is compiled here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache import compiled

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("one/a.py", "two/b.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two sources, and in `made` the stamp of a library made of them."""
    for source in SOURCES:
        (tmp_path / source).parent.mkdir()
        (tmp_path / source).write_text(f"# {source}\n")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "stamp").write_text(
        compiled.stamp_text(str(tmp_path), SOURCES, ["one.a", "two.b"])
    )
    return tmp_path


def found_in(project: Path) -> tuple[str, list[str]] | None:
    return compiled.look_in(str(project / "made"), str(project))


def test_the_very_sources(project: Path) -> None:
    found = found_in(project)
    assert found is not None
    library, modules = found
    assert modules == ["one.a", "two.b"]
    assert Path(library).parent == project / "made"


def test_a_new_date_changes_nothing(project: Path) -> None:
    before = found_in(project)
    os.utime(project / SOURCES[0], (time.time() + 99, time.time() + 99))
    assert found_in(project) == before


def replaced(project: Path) -> None:
    """As long as before, and as old."""
    file = project / SOURCES[1]
    status = file.stat()
    file.write_text(file.read_text().replace("#", "%"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a letter replaced": replaced,
    "a source gone": lambda project: (project / SOURCES[0]).unlink(),
    "no stamp": lambda project: (project / "made" / "stamp").unlink(),
    "an empty stamp": lambda project: (project / "made" / "stamp").write_text(""),
    "a stamp of nothing": lambda project: (project / "made" / "stamp").write_text(
        f"{compiled.FIRST_LINE}\none.a\n"
    ),
    "another version's stamp": lambda project: (project / "made" / "stamp").write_text(
        (project / "made" / "stamp").read_text().replace("engine 1", "engine 0")
    ),
    "half a stamp": lambda project: (project / "made" / "stamp").write_text(
        (project / "made" / "stamp").read_text()[:-15]
    ),
    "bytes that are no text": lambda project: (project / "made" / "stamp").write_bytes(
        b"\xff\n" * 9
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_anything_else_is_not_taken(project: Path, change: str) -> None:
    CHANGES[change](project)
    assert found_in(project) is None


def test_another_stamp_is_another_file(project: Path) -> None:
    stamp = (project / "made" / "stamp").read_text()
    replaced(project)
    changed = compiled.stamp_text(str(project), SOURCES, ["one.a", "two.b"])
    assert compiled.library_of(changed) != compiled.library_of(stamp)


def test_looking_takes_no_time() -> None:
    sources = [str(each.relative_to(REPOSITORY)) for each in (REPOSITORY / "hicache").glob("*.py")]
    took = []
    for _ in range(5):
        began = time.perf_counter()
        compiled.stamp_text(str(REPOSITORY), sources * 2, ["hicache.tree"])
        took.append(time.perf_counter() - began)
    assert min(took) < 0.01


def _version(folder: str, path: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", "--version"],
        env={**os.environ, "HICACHE_COMPILED": folder, "PYTHONPATH": str(path)},
        cwd=path,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("where", ["0", "nowhere"])
def test_without_one_the_sources_run(where: str) -> None:
    done = _version(where)
    assert done.stdout.endswith("(interpreted engine)\n")
    assert done.stderr == ""


def test_what_cannot_be_loaded_is_done_without(tmp_path: Path) -> None:
    stamp = compiled.stamp_text(str(REPOSITORY), ["hicache/tree.py"], ["hicache.tree"])
    (tmp_path / "stamp").write_text(stamp)
    (tmp_path / compiled.library_of(stamp)).write_text("no library\n")
    done = _version(str(tmp_path))
    assert done.stdout.endswith("(interpreted engine)\n")
    assert done.stderr.startswith("hicache: the compiled engine is not used: ")
    assert done.stderr.count("\n") == 1
