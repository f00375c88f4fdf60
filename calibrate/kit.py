"""Which probes a machine and the options allow, and what they stand on.

What probes share (pools, model) is made when the first of them is opened, and closed by the
caller's exit stack. torch is imported here only where a GPU's probes are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple, cast

from calibrate.gpu_fit import Graphs
from calibrate.machine import Machine, look
from calibrate.points import Effort, Probe
from hicache.errors import InputError
from hw.storage.file_store import Backend
from scenario.geometry import ModelGeometry, load_geometry
from scenario.sizes import bytes_text

GIB = 1 << 30
PROBES = (
    "steps", "engine", "transfers", "interference", "disk", "host", "peers", "server",
)  # fmt: skip
THOROUGH_PAGES = (1, 16, 256)
Device = Literal["auto", "cuda", "cpu", "none"]


class Options(NamedTuple):
    """What the command line says. `only`: names of PROBES, () for all. `into`: the profile
    in which only their parts are replaced. `other_pages`: more sizes of pages that copies are timed
    in, () for what the effort has. `budget_s` 0: the usual.
    """

    out: str
    model: str = "Qwen3-8B"
    device: Device = "auto"
    base: str = "nvidia-h200"
    into: str = ""
    name: str = ""
    disk: str | None = None
    disk_bytes: int = 4 * GIB
    l3_backend: str = "direct"
    page_size_tokens: int = 64
    other_pages: tuple[int, ...] = ()
    effort: Effort = "quick"
    budget_s: float = 0.0
    only: tuple[str, ...] = ()
    journal: Literal["resume", "fresh"] = "resume"
    host_bytes: int = 0
    seed: int = 0
    command: str = ""
    server: str = ""
    served_model: str = ""
    report: str = ""


class Kit(NamedTuple):
    """The probes of a session, and what it stands on. `graphs`: asked once all is measured."""

    probes: list[Probe]
    machine: Machine
    geometry: ModelGeometry
    graphs: Callable[[], Graphs]
    device_bytes: int


def make_kit(options: Options, stack: ExitStack) -> Kit:
    """The probes that machine and options allow. What they share is closed by `stack`."""
    device = "none" if options.server else _device(options.device)
    geometry = load_geometry(options.model)
    machine = look(device)
    ceilings = machine.ceilings
    if device == "none":
        probes = _without_gpu(options, geometry)
        return Kit(_chosen(options, probes), machine, geometry, Graphs, 0)
    try:
        from calibrate.probes.bench import Bench
    except ImportError as error:
        raise InputError(
            f"--device {device} needs {error.name}: pip install 'hicache-lab[hw]'"
        ) from None
    from calibrate.probes.disk import DiskProbe
    from calibrate.probes.engine import EngineProbe
    from calibrate.probes.host import HostProbe
    from calibrate.probes.interference import InterferenceProbe
    from calibrate.probes.peers import PeersProbe
    from calibrate.probes.steps import StepsProbe
    from calibrate.probes.transfers import TransfersProbe

    bench = Bench(device, geometry, options.model, options.page_size_tokens, seed=options.seed)
    stack.callback(bench.close)
    small = device == "cpu"
    disk_bytes = min(options.disk_bytes, 64 << 20) if small else options.disk_bytes

    def host_memory(pages: int, page_bytes: int) -> Any:
        assert bench.host.page_bytes == page_bytes
        if bench.host.pages < pages:
            raise InputError(f"{pages} pages of L2 are needed, {bench.host.pages} are there")
        return bench.host

    page_bytes = -(-bench.layout.page_bytes // 4096) * 4096
    if not small:
        _check_disk(options, page_bytes)
    most_bytes = min(disk_bytes // 8, bench.scale.host_bytes // 8)
    probes: list[Probe] = [
        StepsProbe(bench, ceilings.memory_bytes_per_s),
        EngineProbe(bench, options.disk, 24 if small else 48),
        TransfersProbe(
            bench, ceilings.link_bytes_per_s, other_pages=other_pages(options, small)
        ),
        InterferenceProbe(bench),
        DiskProbe(
            options.disk, page_bytes, backend=cast("Backend", options.l3_backend),
            file_bytes=disk_bytes, most_bytes=most_bytes, host=host_memory,
        ),
        HostProbe(bench.driver, (32 << 20) if small else (256 << 20)),
    ]  # fmt: skip

    if int(machine.facts.get("gpus", "1")) > 1:
        probes.append(PeersProbe())

    def graphs() -> Graphs:
        buckets = bench.buckets() if "steps" in {each.name for each in probes} else None
        return Graphs(buckets.prefill_tokens, buckets.decoders) if buckets else Graphs()

    return Kit(_chosen(options, probes), machine, geometry, graphs, _device_bytes(device))


def other_pages(options: Options, small: bool) -> tuple[int, ...]:
    """Tokens of the pages that copies are timed in besides `page_size_tokens`."""
    usual = THOROUGH_PAGES if options.effort == "thorough" and not small else ()
    return tuple(each for each in options.other_pages or usual if each != options.page_size_tokens)


def _device(wanted: Device) -> str:
    if wanted in ("cpu", "none"):
        return wanted
    try:
        # isort: split
        import torch

        import hw  # noqa: F401  # before Triton is imported
    except ImportError as error:
        if wanted == "cuda":
            raise InputError(
                f"--device cuda needs {error.name}: pip install 'hicache-lab[hw]'"
            ) from None
        return "none"
    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise InputError("--device cuda: there is no CUDA GPU here that PyTorch can use")
    return "none"


def _without_gpu(options: Options, geometry: ModelGeometry) -> list[Probe]:
    from calibrate.probes.disk import DiskProbe
    from calibrate.probes.host import HostProbe

    page_bytes = geometry.kv_bytes_per_token * options.page_size_tokens
    _check_disk(options, page_bytes)
    probes: list[Probe] = []
    if options.server:
        from calibrate.openai import Server
        from calibrate.probes.server import ServerProbe

        probe = ServerProbe(
            Server(options.server, options.served_model), geometry.vocab_size,
            geometry.max_context_tokens, seed=options.seed,
        )  # fmt: skip
        probe.check()
        probes.append(probe)
    return [
        *probes,
        DiskProbe(
            options.disk, page_bytes, backend=cast("Backend", options.l3_backend),
            file_bytes=options.disk_bytes, most_bytes=options.disk_bytes // 8,
        ),
        HostProbe(None),
    ]  # fmt: skip


def _check_disk(options: Options, page_bytes: int) -> None:
    """Raises InputError where the disk's file would have to be larger than was allowed."""
    from calibrate.probes.disk import LEAST_SLOTS

    least_bytes = LEAST_SLOTS * page_bytes
    if "disk" in (options.only or PROBES) and options.disk_bytes < least_bytes:
        raise InputError(
            f"--disk-size {bytes_text(options.disk_bytes)}: {LEAST_SLOTS} pages of "
            f"{options.page_size_tokens} tokens are needed, {bytes_text(least_bytes)}; give a "
            "larger one, or a smaller --page-size"
        )


def _chosen(options: Options, probes: list[Probe]) -> list[Probe]:
    """Those of `--only`. Raises InputError for one that cannot be measured here."""
    there = [each.name for each in probes]
    for name in options.only:
        if name not in there:
            why = {
                "server": "no --server was given",
                "peers": "there are not several GPUs here",
            }.get(name, "it is not measured without a GPU, or beside a server")
            raise InputError(f"--only {name}: {why}; measured here are {', '.join(there)}")
    return [each for each in probes if not options.only or each.name in options.only]


def _device_bytes(device: str) -> int:
    if device != "cuda":
        return 0
    import torch

    return torch.cuda.get_device_properties(0).total_memory
