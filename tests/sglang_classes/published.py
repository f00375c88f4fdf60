"""SGLang's published Python classes on a machine without a GPU: where they lie, how they import.

`make test-sglang` puts the packages under build/sglang/VERSION, without their dependencies; nothing
of them is in this project. Their classes for caching need torch and numpy alone, but they stand
behind imports of everything: GPU kernels, servers, validation. `load` gives them an empty `sglang`
package with the right path, and stand-ins for what is not installed and never called.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import sysconfig
import types
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "sglang"
THIRD_PARTY = FOLDER / "third-party"
WANTED = os.environ.get("HICACHE_SGLANG", "")

# What the caching modules import and do not call here.
STAND_INS = (
    "sglang.kernels",
    "sglang.srt.disaggregation.kv_events",
    "sglang.srt.distributed",
    "sglang.srt.layers",
    "sglang.srt.managers.cache_controller",
    "sglang.srt.mem_cache.allocator",
    "sglang.srt.mem_cache.hybrid_cache",
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.mem_cache.pool_host",
    "sglang.srt.observability",
    "sglang.srt.runtime_context",
    "sglang.srt.utils",
)
NOT_INSTALLED = ("fastapi", "orjson", "pybase64", "pydantic")


def versions() -> list[str]:
    """What is there, the newest last."""
    found = [path.parent.name for path in FOLDER.glob("*/sglang") if path.is_dir()]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".") if part.isdigit()])


def version() -> str:
    """The version under test: HICACHE_SGLANG, else the newest; "" if there is none."""
    there = versions()
    if WANTED:
        return WANTED if WANTED in there else ""
    return there[-1] if there else ""


def missing() -> str:
    """Why nothing can be compared; empty if it can."""
    if version():
        return ""
    what = f"sglang {WANTED}" if WANTED else "sglang"
    return f"{what} is not under build/sglang: `make test-sglang` puts it there"


class _StandIn(ModuleType):
    """A module in which every name is a class of which nothing is expected."""

    __path__: list[str] = []  # noqa: RUF012 (what a package has)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(
            name,
            (),
            {
                "__init__": lambda self, *_, **__: None,
                "__call__": lambda self, *_, **__: self,
                "__class_getitem__": classmethod(lambda cls, _: cls),
            },
        )
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object = None, target: object = None):
        for name in self._names:
            if fullname == name or fullname.startswith(name + "."):
                return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "sglang.srt.utils.common":
            module.human_readable_int = int  # type: ignore[attr-defined]
            module.ceil_align = lambda n, to: -(-n // to) * to  # type: ignore[attr-defined]
        if module.__name__ == "sglang.srt.utils.cpp_extension_loader":
            module.load_extension_with_recovery = _compiled  # type: ignore[attr-defined]


def _compiled(name: str, sources: list[str], **_: object) -> ModuleType:
    """The package's own C++ hash, compiled for here. Raises OSError or CalledProcessError."""
    import torch

    text = Path(sources[0]).read_bytes()
    built = FOLDER / "compiled" / hashlib.sha256(text).hexdigest()[:16] / f"{name}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        include = [Path(torch.__file__).parent / "include", sysconfig.get_paths()["include"]]
        beside = built.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [
                "g++", "-O1", "-w", "-shared", "-fPIC", "-std=c++17",
                f"-DTORCH_EXTENSION_NAME={name}", *(f"-I{each}" for each in include), sources[0],
                "-lcrypto", "-o", str(beside),
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip
        beside.replace(built)
    spec = importlib.util.spec_from_file_location(name, built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(module: str) -> ModuleType:
    """`sglang.srt.mem_cache.MODULE` of the version under test."""
    if "sglang" not in sys.modules:
        shell = types.ModuleType("sglang")
        shell.__path__ = [str(FOLDER / version() / "sglang")]
        sys.modules["sglang"] = shell
        sys.meta_path.insert(0, _Finder(STAND_INS))  # for good: some are imported when called
    before = set(sys.modules)
    finder = _Finder(NOT_INSTALLED)
    sys.meta_path.insert(0, finder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(f"sglang.srt.mem_cache.{module}")
    finally:
        sys.meta_path.remove(finder)
        # Other tests of this process must not meet the stand-ins.
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in NOT_INSTALLED:
                del sys.modules[name]


class Ticks:
    """A clock in place of the module `time`: later at each look, and the same in every run."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def perf_counter(self) -> float:
        return self.now
