"""What machine this is, as far as it says itself; and what its hardware cannot do better than.

Facts are words for people and for the journal's identity; ceilings are numbers that samples are
held against. What the machine does not tell (a virtual one often hides its PCIe link) is left out,
never guessed: without a ceiling nothing is rejected, and the facts say so.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

# Transfers a second of one lane, and the part of its bits that are data (PCI Express base
# specification: 8b/10b up to generation 2, 128b/130b after it, PAM4 with FLITs from 6 on).
_LANES = {1: (2.5e9, 0.8), 2: (5e9, 0.8), 3: (8e9, 128 / 130), 4: (16e9, 128 / 130),
          5: (32e9, 128 / 130), 6: (64e9, 242 / 256)}  # fmt: skip
_LIBRARIES = ("hicache-lab", "torch", "triton", "transformers", "numpy", "simpy")
_QUERY = ("name", "driver_version", "pcie.link.gen.max", "pcie.link.width.max", "pci.bus_id",
          "clocks.max.memory", "memory.total", "utilization.gpu")  # fmt: skip
# Of the cores, and of the GPU in percent: from which on other work is likely to disturb samples.
BUSY_CORES, BUSY_GPU = 0.5, 10
# How facts of a moment end, and what is put there for a later session's.
_BEGAN, _WENT_ON = " when it began", " when it went on"


class Ceilings(NamedTuple):
    """Bytes a second that nothing exceeds; 0: not known."""

    link_bytes_per_s: float = 0.0
    memory_bytes_per_s: float = 0.0


class Machine(NamedTuple):
    """Facts by name, the ceilings, and what speaks against measuring here now."""

    facts: dict[str, str]
    ceilings: Ceilings
    doubts: tuple[str, ...] = ()


def look(device: str) -> Machine:
    """This machine, with its GPU if `device` is cuda. Ask before anything is measured."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    facts = {
        "cpu": _cpu(),
        "cores": str(cores),
        "load": f"{load:.1f}{_BEGAN}",
        "memory": f"{host_memory_bytes() / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    for name in _LIBRARIES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    ceilings = Ceilings()
    if device == "cuda":
        told, ceilings = _gpu()
        facts |= told
    return Machine(facts, ceilings, doubts(load, cores, _number(facts.get("gpu_load", ""))))


def momentary(facts: Mapping[str, str]) -> dict[str, str]:
    """Those of `facts` that were so at the begin of a session, and may not be at the next one's."""
    return {name: value for name, value in facts.items() if value.endswith(_BEGAN)}


def of_all_sessions(earlier: Iterable[Mapping[str, str]], facts: dict[str, str]) -> dict[str, str]:
    """`facts` of the last session with what `momentary` kept of each earlier one, in order."""
    first, *others = (*earlier, momentary(facts))
    told: dict[str, list[str]] = {name: [value] for name, value in first.items()}
    for session in others:
        for name, value in session.items():
            # A journal of an older version kept nothing.
            told.setdefault(name, [] if first else [f"not kept{_BEGAN}"]).append(value)
    joined = {
        name: "; ".join([began, *(each.replace(_BEGAN, _WENT_ON) for each in later)])
        for name, (began, *later) in told.items()
    }
    return facts | joined


def doubts(load: float, cores: int, gpu_percent: float) -> tuple[str, ...]:
    """Signs of other work on a machine, which spoils samples: a line each."""
    found: list[str] = []
    if load > BUSY_CORES * cores:
        found.append(f"other work runs here, a load of {load:.1f} on {cores} cores")
    if gpu_percent > BUSY_GPU:
        found.append(f"other work runs on the GPU, which is {gpu_percent:.0f} % busy")
    return tuple(found)


def link_bytes_per_s(generation: int, width: int) -> float:
    """What a PCIe link of so many lanes carries one way, headers not counted; 0 for a generation
    that is not known.
    """
    rate, part = _LANES.get(generation, (0.0, 0.0))
    return rate * part * width / 8


def _gpu() -> tuple[dict[str, str], Ceilings]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    facts = {"gpu": torch.cuda.get_device_name(0), "cuda": torch.version.cuda or ""}
    facts["gpu_memory"] = f"{properties.total_memory / (1 << 30):.1f} GiB"
    facts["gpus"] = str(torch.cuda.device_count())
    told = _ask_driver()
    if told.get("driver_version"):
        facts["driver"] = told["driver_version"]
    if told.get("utilization.gpu"):
        facts["gpu_load"] = f"{_number(told['utilization.gpu']):.0f} %{_BEGAN}"
    generation = _number(told.get("pcie.link.gen.max", ""))
    width = _number(told.get("pcie.link.width.max", ""))
    if not generation or not width:
        generation, width = _link_of(told.get("pci.bus_id", ""))
    link = link_bytes_per_s(int(generation), int(width))
    facts["link"] = (
        f"PCIe generation {int(generation)}, {int(width)} lanes, {link / 1e9:.1f} GB/s each way"
        if link
        else "not told: no sample is held against it"
    )
    memory = _memory_rate(properties, _number(told.get("clocks.max.memory", "")))
    facts["gpu_bandwidth"] = (
        f"{memory / 1e9:.0f} GB/s" if memory else "not told: no sample is held against it"
    )
    return facts, Ceilings(link, memory)


def _memory_rate(properties: object, clock_mhz: float) -> float:
    """Of the GPU's memory: two transfers a clock over the width of its bus."""
    width_bits = float(getattr(properties, "memory_bus_width", 0) or 0)
    clock_hz = clock_mhz * 1e6 or float(getattr(properties, "memory_clock_rate", 0) or 0) * 1e3
    return 2 * clock_hz * width_bits / 8


def _ask_driver() -> dict[str, str]:
    """What nvidia-smi tells of the first GPU; {} without it."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = answer.stdout.splitlines()
    if not lines:
        return {}
    return dict(zip(_QUERY, (each.strip() for each in lines[0].split(",")), strict=False))


def _link_of(bus_id: str) -> tuple[float, float]:
    """Generation and width from sysfs; zeros where it does not say."""
    # The driver writes eight digits of the domain, sysfs four.
    folder = f"/sys/bus/pci/devices/{bus_id[-12:].lower()}"
    speed = _number(_read(f"{folder}/max_link_speed"))
    width = _number(_read(f"{folder}/max_link_width"))
    for generation, (rate, _) in _LANES.items():
        if speed and abs(rate / 1e9 - speed) < 0.1:
            return generation, width
    return 0.0, 0.0


def _cpu() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.M)
    return found[1] if found else platform.processor() or platform.machine()


def host_memory_bytes() -> int:
    """Of the machine, as the system shows it; a control group that runs here may have less."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.M)
    return int(found[1]) * 1024 if found else 0


def _number(text: str) -> float:
    found = re.match(r"\s*(\d+(?:\.\d+)?)", text)
    return float(found[1]) if found else 0.0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
