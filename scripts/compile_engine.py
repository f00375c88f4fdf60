"""Makes the compiled engine: the hot modules through mypyc into one library in build/compiled.

    make compiled, or .venv/bin/python scripts/compile_engine.py

It takes a C compiler and Python's headers; mypy is installed into this environment if it is not
there (the extra `fast`). A library that is there and of these very sources is left alone. Exit code
1, and one line that says why: there is none now, and everything runs from the sources as before.

What is used when stands in `hicache.compiled`; why it is built at all, in docs/decisions/0009.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["HICACHE_COMPILED"] = "0"  # this process and its children, but for the check at the end

from hicache import compiled  # noqa: E402

# What runs for every operation, request and page. What msgspec or dataclasses make (options,
# profiles, traces) cannot be compiled; what others derive from (errors) must not be.
MODULES = (
    "hicache.adaptive", "hicache.admission", "hicache.allocator", "hicache.arrival",
    "hicache.arrivals", "hicache.attachment", "hicache.copies", "hicache.cost_model",
    "hicache.decoding", "hicache.duplicates", "hicache.endings", "hicache.engine",
    "hicache.eviction", "hicache.holdings", "hicache.instant_buffer", "hicache.instant_store",
    "hicache.kernel", "hicache.loads", "hicache.metrics", "hicache.node", "hicache.offloading",
    "hicache.operations", "hicache.outlook", "hicache.prefetch", "hicache.prefetch_pages",
    "hicache.prefetch_rules", "hicache.prefilling", "hicache.queue", "hicache.queue_ahead",
    "hicache.ranks", "hicache.record", "hicache.record_lines", "hicache.remembering",
    "hicache.requests", "hicache.restore_policy", "hicache.restoring", "hicache.reuse",
    "hicache.running", "hicache.scheduler", "hicache.staged_reads", "hicache.staged_writes",
    "hicache.store_belief", "hicache.store_contents", "hicache.store_index", "hicache.tier",
    "hicache.transfers", "hicache.tree", "hicache.tree_pages", "hicache.tree_paths",
    "hicache.untimed", "hicache.waiting", "hicache.write_back", "hicache.write_rules", "hw.jobs",
    "hw.machine", "hw.pump", "hw.steps", "hw.submission", "sim.batched_writes", "sim.burst",
    "sim.contention", "sim.curves", "sim.disk", "sim.finish", "sim.gpu", "sim.host",
    "sim.host_pieces", "sim.instant", "sim.keyed_store", "sim.lanes", "sim.layered",
    "sim.link_ways", "sim.pcie", "sim.ranges", "sim.shared_device", "sim.step_model", "sim.timer",
    "traces.block_keys",
)  # fmt: skip

SLOWER = "the sources run as they are, at about half the speed"
# More than -O1 takes half as long again to compile and gains nothing that could be measured.
FLAGS = ("-O1", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-w")
CHECKED_REQUESTS = 300


class NotPossible(Exception):
    """No compiled engine here. The message says why."""


def main() -> int:
    """Make it, if need be; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=Path(compiled.folder_of(str(ROOT))))
    options = parser.parse_args()
    began = time.monotonic()
    try:
        if up_to_date(options.folder):
            print("compiled engine: up to date")
            return 0
        make(options.folder)
    except NotPossible as reason:
        print(f"No compiled engine: {reason}. Nothing is lost but time: {SLOWER}.")
        return 1
    print(f"compiled engine: made in {time.monotonic() - began:.0f} s")
    return 0


def up_to_date(folder: Path) -> bool:
    """Whether what is in `folder` was made of these very sources, and all that it should be."""
    found = compiled.look_in(str(folder), str(ROOT))
    return found is not None and tuple(found[1]) == MODULES


def make(folder: Path) -> None:
    """Compile into `folder`, and let nothing of it be seen before it has passed its check."""
    compiler = _compiler()
    print("compiling the engine: half a minute on two idle cores ...", flush=True)
    _need_mypyc()
    # Taken before anything is read: a source that changes meanwhile makes the library outdated.
    stamp = compiled.stamp_text(str(ROOT), sources_of(MODULES), MODULES)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder.parent) as name:
        work = Path(name)
        c_files, includes = _to_c(work / "c")
        entries = work / "entries.c"
        entries.write_text(_entries(MODULES))
        made = work / "made"
        made.mkdir()
        bundles = _bundled([*c_files, entries], work)
        _compile(compiler, bundles, includes, made / compiled.library_of(stamp))
        (made / compiled.STAMP).write_text(stamp, encoding="utf-8")
        _check(made, work)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def sources_of(modules: Sequence[str]) -> list[str]:
    """The files of `modules` and of all that they import of this project, directly or not.

    All of these, because compiled code also rests on the types of what is not compiled.
    """
    found: dict[str, str] = {}
    todo = list(modules)
    while todo:
        module = todo.pop()
        parts = module.split(".")
        file = next(
            (
                each
                for each in (f"{'/'.join(parts)}.py", f"{'/'.join(parts)}/__init__.py")
                if (ROOT / each).is_file()
            ),
            None,
        )
        if file is None or module in found:
            continue
        found[module] = file
        todo += [".".join(parts[:end]) for end in range(1, len(parts))]
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                todo += [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return sorted(found.values())


def _compiler() -> list[str]:
    """The C compiler that this Python was built with, or cc."""
    if os.name != "posix":
        raise NotPossible("it is made on Linux and macOS only")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise NotPossible(f"Python's headers are not installed ({header})")
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        command = ["cc"]
    if shutil.which(command[0]) is None:
        raise NotPossible("there is no C compiler")
    return command


def _need_mypyc() -> None:
    if find_spec("mypyc") and find_spec("setuptools"):
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"]["fast"]
    done = _run([sys.executable, "-m", "pip", "install", "--quiet", *wanted])
    if done.returncode:
        raise NotPossible(f"{' '.join(wanted)} cannot be installed: {_last_line(done.stderr)}")


def _to_c(target: Path) -> tuple[list[Path], list[str]]:
    """Let mypyc write the modules as C: the files, and the folders of headers."""
    from mypyc.build import mypycify

    paths = [f"{module.replace('.', '/')}.py" for module in MODULES]
    said = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(said):
        try:
            library, *_ = mypycify(
                ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", *paths],
                multi_file=True,
                group_name=compiled.GROUP,
                target_dir=str(target),
            )
        except SystemExit:
            errors = [line for line in said.getvalue().splitlines() if "error:" in line]
            raise NotPossible(f"mypyc refuses: {' | '.join(errors[:3])}") from None
    return [ROOT / file for file in library.sources], list(library.include_dirs)


def _entries(modules: Sequence[str]) -> str:
    """C for the way into each module under the name by which Python asks for it.

    Python looks for PyInit_ and the last part of the name, so those must differ.
    """
    from mypyc.namegen import exported_name

    assert len({module.split(".")[-1] for module in modules}) == len(modules)
    text = ["#include <Python.h>\n"]
    for module in modules:
        inner = f"CPyInit_{exported_name(module)}"
        text.append(f"PyObject *{inner}(void);\n")
        text.append(
            f"PyMODINIT_FUNC PyInit_{module.split('.')[-1]}(void) {{ return {inner}(); }}\n"
        )
    return "".join(text)


def _bundled(c_files: Sequence[Path], work: Path) -> list[Path]:
    """The same in fewer files of about one size: each reads the same headers, a fifth of the time.

    Some for each core, so that all are busy to the end.
    """
    bundles: list[list[Path]] = [[] for _ in range(3 * (os.cpu_count() or 1))]
    sizes = [0] * len(bundles)
    for file in sorted(c_files, key=lambda file: -file.stat().st_size):
        smallest = sizes.index(min(sizes))
        bundles[smallest].append(file)
        sizes[smallest] += file.stat().st_size
    made: list[Path] = []
    for number, files in enumerate(filter(None, bundles)):
        made.append(work / f"bundle-{number}.c")
        made[-1].write_text("".join(f'#include "{file}"\n' for file in files), encoding="utf-8")
    return made


def _compile(
    compiler: list[str], c_files: Sequence[Path], includes: Sequence[str], library: Path
) -> None:
    """All files on all cores; then the library of them."""
    headers = [f"-I{each}" for each in (sysconfig.get_path("include"), *includes)]

    def compile_one(file: Path) -> str:
        done = _run([*compiler, *FLAGS, *headers, "-c", str(file), "-o", f"{file}.o"])
        if done.returncode:
            raise NotPossible(f"the C compiler fails: {_last_line(done.stderr)}")
        return f"{file}.o"

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compile_one, c_files))
    link = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    done = _run([*compiler, *link[1:], *objects, "-o", str(library)])
    if done.returncode:
        raise NotPossible(f"the linker fails: {_last_line(done.stderr)}")


def _check(made: Path, work: Path) -> None:
    """A replay must leave the same bytes with the library as without."""
    trace = work / "trace.jsonl"
    with (ROOT / "data" / "agents.jsonl").open(encoding="utf-8") as lines:
        trace.write_text("".join(islice(lines, CHECKED_REQUESTS)), encoding="utf-8")
    asked = ["replay", str(trace), "--l1", "4GiB", "--l2", "2x", "--l3", "10x"]
    asked += ["--policy", "always", "--page-size", "64", "--save-record", "--quiet"]
    results: list[list[bytes]] = []
    for which in (str(made), "0"):
        out = work / f"result-{len(results)}"
        code = "import sys; from hicache import compiled; from cli.main import run; "
        code += "print(compiled.in_use()); sys.exit(run())"
        done = subprocess.run(
            [sys.executable, "-c", code, *asked, "--out", str(out)],
            env={**os.environ, "HICACHE_COMPILED": which, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not done.stdout.startswith(str(which != "0")):
            raise NotPossible(f"it does not run: {_last_line(done.stderr)}")
        results.append([file.read_bytes() for file in sorted(out.iterdir())])
    if results[0] != results[1]:
        raise NotPossible("its results are not those of the sources; please report this")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


if __name__ == "__main__":
    # A shell lets what runs beside another command ignore Ctrl-C, and with it the compilers below.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
