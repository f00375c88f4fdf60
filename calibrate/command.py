"""`hicache calibrate`: which probes, how long, and what is written in the end.

    --device cuda   all probes, with the named model on the GPU
             cpu    the same code on CPU tensors and Triton's interpreter: to try it out
             none   disk and memory; the GPU's part comes from the base profile, as estimates
             auto   cuda where there is a GPU, else none

The journal lies beside the profile while the calibration is not complete (stopped, or its time was
over): the same command goes on from there. Ctrl-C and SIGTERM write the profile of what is done,
too.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from math import inf

from calibrate.build import Built, Told, build_profile, misfits
from calibrate.gpu_fit import Graphs
from calibrate.into import Renewed, check_parts, of_these, other_machine, renew
from calibrate.journal import Journal
from calibrate.kit import PROBES, Kit, Options, make_kit
from calibrate.machine import host_memory_bytes, momentary, of_all_sessions
from calibrate.profile_text import notes
from calibrate.progress import SessionProgress
from calibrate.session import Measured, Session
from calibrate.stopping import Stopping
from hicache.errors import InputError
from hw.storage.file_store import BACKENDS as L3_BACKENDS
from scenario.measurement import Measurement
from scenario.profile import Memory, Profile, Quantity, dump_profile, load_profile
from scenario.sizes import bytes_text

GIB = 1 << 30
BUDGET_S = {"quick": 170.0, "thorough": 880.0}
LEAST_OF_BUDGET = 0.25


def run_calibration(options: Options) -> int:
    """Calibrate and write `options.out`; returns the exit code. Raises InputError."""
    begun_s = time.monotonic()
    _check(options)
    base = load_profile(options.into, "--into") if options.into else load_profile(options.base)
    with ExitStack() as stack:
        kit = make_kit(options, stack)
        for doubt in kit.machine.doubts:
            print(f"warning: {doubt}: samples may be disturbed", file=sys.stderr)
        if options.into and (other := other_machine(base, kit.machine.facts)):
            print(f"warning: {options.into} is of another machine: {other}", file=sys.stderr)
        journal = Journal(f"{options.out}.journal", identity(options, kit))
        stack.callback(journal.close)
        if journal.resumed:
            print(f"{journal.path}: {journal.resumed} points are done already", file=sys.stderr)
        began = datetime.now(UTC)
        with SessionProgress() as progress, Stopping() as stopping:
            measured = Session(
                kit.probes, journal, progress, effort=options.effort,
                budget_s=_budget_s(options, time.monotonic() - begun_s),
            ).run()  # fmt: skip
        told = _measurement(options, kit, measured, began, journal)
        kept: tuple[str, ...] = ()
        if options.into:
            renewed = _renewed(options, kit, base, measured, told)
            built, kept = Built(renewed.profile, ()), renewed.kept
            said = of_these(_measurement_of(built.profile), renewed.measured)
        else:
            built = assemble(options, kit, base, measured, told)
            said = _measurement_of(built.profile)
        write_profile(built.profile, options.out)
        if options.report:
            from calibrate.plot_files import write_plots

            write_plots(built.profile, options.report)
        if not measured.interrupted and not measured.late:
            journal.discard()
        else:
            facts = momentary(kit.machine.facts)
            journal.end_session(_text(began), measured.duration_s, facts)
    _say(built, said, options, measured)
    for probe in kept:
        print(f"warning: {probe}: as it was in {options.into}", file=sys.stderr)
    return stopping.code if measured.interrupted else 0


def _budget_s(options: Options, spent_s: float) -> float:
    """For the session, whose probes took `spent_s` to make: importing torch alone may take longer
    than a disk. What is left of a budget that was given, and always some, so that a command that is
    repeated comes to its end.
    """
    if not options.budget_s:
        return BUDGET_S[options.effort]
    return max(options.budget_s - spent_s, LEAST_OF_BUDGET * options.budget_s)


def assemble(
    options: Options, kit: Kit, base: Profile, measured: Measured, told_of: Measurement
) -> Built:
    """The profile of a session, of which `told_of` says when it was."""
    facts = told_of.facts
    graphs = kit.graphs() if measured.samples("steps.prefill") else Graphs()
    if graphs.prefill_tokens:
        facts["graphs"] = ", ".join(map(str, graphs.prefill_tokens))
        facts["decode_graphs"] = ", ".join(map(str, graphs.decoders))
    versions = [f"{name} {facts[name]}" for name in ("torch", "triton", "driver") if name in facts]
    told = Told(
        name=options.name or _stem(options.out),
        machine=", ".join(facts[key] for key in ("gpu", "cpu", "memory") if key in facts),
        software=", ".join(versions) or f"Python {facts['python']}",
        date=told_of.began[:10],
        source=f"hicache calibrate, {options.effort}",
    )
    memory = _memory(options, kit, base)
    return build_profile(measured, told, base, kit.geometry, told_of, memory, graphs)


def _renewed(
    options: Options, kit: Kit, profile: Profile, measured: Measured, told_of: Measurement
) -> Renewed:
    """`profile` with what was measured."""
    return renew(
        profile, measured, {each.name: list(each.describe()) for each in kit.probes},
        told_of, kit.geometry, _memory(options, kit, profile),
        kit.graphs() if measured.samples("steps.prefill") else Graphs(),
        name=options.name or _stem(options.out),
    )  # fmt: skip


def _measurement_of(profile: Profile) -> Measurement:
    assert profile.measurement is not None
    return profile.measurement


def _memory(options: Options, kit: Kit, base: Profile) -> Memory:
    host_bytes = options.host_bytes or host_memory_bytes()
    return Memory(
        device_bytes=(
            Quantity(
                provenance="measured", how="what the driver shows", value=kit.device_bytes
            ) if kit.device_bytes else Quantity(
                provenance="estimate",
                how=f"not measured here, from {base.name}",
                value=base.memory.device_bytes.value,
            )
        ),
        host_bytes=Quantity(
            provenance="measured",
            how="as given" if options.host_bytes else "what the system shows",
            value=max(1, host_bytes),
        ),
        storage_bytes=_room(options.disk),
    )  # fmt: skip


def _measurement(
    options: Options, kit: Kit, measured: Measured, began: datetime, journal: Journal
) -> Measurement:
    """Of all sessions together that have gone into the journal."""
    return Measurement(
        command=options.command or "hicache calibrate",
        began=journal.sessions[0].began if journal.sessions else _text(began),
        duration_s=round(sum(each.duration_s for each in journal.sessions) + measured.duration_s),
        facts=of_all_sessions((each.facts for each in journal.sessions), kit.machine.facts),
        ceilings={
            name: round(value) for name, value in kit.machine.ceilings._asdict().items() if value
        },
    )


def _text(began: datetime) -> str:
    return began.isoformat(timespec="seconds")


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def identity(options: Options, kit: Kit) -> dict[str, str]:
    """What samples of one journal have in common."""
    facts = kit.machine.facts
    named = {key: facts.get(key, "") for key in ("gpu", "driver", "cpu", "torch", "system")}
    return named | {
        "model": options.model,
        "device": options.device,
        "disk": os.path.abspath(options.disk) if options.disk else "",
        "l3_backend": options.l3_backend,
        "page_size": ", ".join(map(str, (options.page_size_tokens, *options.other_pages))),
        "effort": options.effort,
        "server": options.server,
        "served_model": options.served_model,
        "disk_size": str(options.disk_bytes),
        # A profile takes what its own probes measured, and the journal goes when it is written.
        "only": ", ".join(sorted(set(options.only))),
    }


def write_profile(profile: Profile, path: str) -> None:
    """Write it in one piece: a reader sees the old file or the new one."""
    beside = f"{path}.new"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(dump_profile(profile))
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _check(options: Options) -> None:
    for name in options.only:
        if name not in PROBES:
            raise InputError(f"--only {name}: it must be of {', '.join(PROBES)}")
    if options.into:
        check_parts(options.only)
        if options.server:
            raise InputError("--into with --server: a server's times are a whole profile's")
        if options.base != Options(out="").base:
            raise InputError(
                f"--into with --base {options.base}: all else is of {options.into} already"
            )
    if options.l3_backend not in L3_BACKENDS:
        raise InputError(
            f"--l3-backend {options.l3_backend}: it must be of {', '.join(L3_BACKENDS)}"
        )
    sizes = (options.page_size_tokens, *options.other_pages)
    if min(sizes) < 1:
        raise InputError(f"--page-size {min(sizes)}: it must be 1 or more")
    if len(set(sizes)) < len(sizes):
        raise InputError(f"--page-size {', '.join(map(str, sizes))}: each may be given once")
    if not 0 <= options.budget_s < inf:
        raise InputError(
            f"--budget {options.budget_s:g}: it must be a number of seconds, 0 or more"
        )
    if not options.out.endswith(".json"):
        raise InputError(f"--out {options.out}: a profile is a .json file")
    for name, path in (("--out", options.out), ("--report", options.report)):
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise InputError(f"{name} {path}: there is no folder {folder}")
        if path.endswith((".json", ".html")) and os.path.isdir(path):
            raise InputError(f"{name} {path}: it is a folder")
    if options.report and os.path.abspath(options.report) == os.path.abspath(options.out):
        raise InputError(f"--report {options.report}: that is where --out writes the profile")
    if options.disk is not None and not os.path.isdir(options.disk):
        raise InputError(f"--disk {options.disk}: no such folder")
    free = _free_bytes(options.disk)
    wanted = "disk" in (options.only or PROBES) and options.device != "cpu"
    if wanted and options.disk_bytes > free:
        raise InputError(
            f"--disk-size {bytes_text(options.disk_bytes)}: {bytes_text(free)} are free there"
        )
    if options.journal == "fresh":
        with suppress(FileNotFoundError):
            os.unlink(f"{options.out}.journal")


def _room(disk: str | None) -> Quantity:
    return Quantity(
        provenance="measured",
        how="what is free on the disk of L3's file",
        value=max(1, _free_bytes(disk)),
    )


def _free_bytes(disk: str | None) -> int:
    import shutil
    import tempfile

    return shutil.disk_usage(disk or tempfile.gettempdir()).free


def _say(built: Built, measurement: Measurement, options: Options, measured: Measured) -> None:
    """What a person wants to know at the end. `measurement`: what is new of it."""
    profile = built.profile
    for fit in measurement.fits:
        error = "-"
        if fit.median_error_permille is not None:
            p95 = (fit.p95_error_permille or 0) / 10
            error = f"{fit.median_error_permille / 10:.1f} % (p95 {p95:.1f} %)"
        print(f"{fit.key}: {error}; {fit.verdict}")
    for note, where in notes(measurement):
        print(f"{where}: {note}")
    for key in built.borrowed:
        print(f"not measured: {key}, from {options.base} (an estimate)")
    bad = misfits(measurement.fits)
    if bad:
        print(
            f"warning: {len(bad)} of {len(measurement.fits)} fits miss their limit", file=sys.stderr
        )
    if measured.interrupted or measured.late:
        ended = "stopped" if measured.interrupted else "the time was over"
        print(
            f"{ended}: {options.out} holds what was done; the same command goes on", file=sys.stderr
        )
    print(f"profile: {os.path.relpath(options.out)} ({profile.name}; {time.strftime('%H:%M:%S')})")
