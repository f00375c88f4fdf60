"""fio on the benchmark's file, with the same blocks, depth and flags as the row it stands beside.

    kind      engine                      what it reads or writes
    direct    psync in as many threads,   blocks at random in the whole file
    cold      or io_uring as deep         the same, none twice: each job has a part of the file
    warm      io_uring in as many         blocks at random, into as much memory as the row does
              threads
    small     the same                    blocks at random, into 32 MiB a thread
    hot       psync in as many threads    blocks at random, into one buffer a thread

A cached read is a copy, and where it goes decides how fast it is: fio's `psync` copies into one
buffer a thread over and over, which stays in the core's cache. That is "hot": a restore cannot do
it, since its pages are wanted in memory. With io_uring, batches as deep as there are buffers, and
waits for the whole batch, fio fills memory that no core's own cache holds. 32 MiB a thread is a
memory that the cores' common cache holds much of ("small"): 16 threads have 512 MiB. So the row
that is judged has fio read into as many bytes as we read into, which it has touched before. fio
counts a batch whole that began while it ramped up: of 300 ms, twelve batches of 72 MiB a thread,
that was a tenth, hence the 1.5 s. `--mem=mmap`: fio's buffers begin where pages do, as ours. With
malloc they begin 16 bytes behind, where some processors (an AMD EPYC) copy at a quarter of the
rate. `--invalidate=0` throughout: who asks drops the cache or does not. The clock begins when all
threads are there.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

GIB = 1 << 30
SMALL_BYTES = 32 << 20  # a thread's buffers
# fio's buffers are touched for the first time while it ramps up.
RAMP_MS, RUN_MS = 400, 1500


class Setting(NamedTuple):
    """What fio is to do. `kind`: direct, cold, warm, small, hot. `verb`: read, write. `width`:
    threads, or the depth of the one ring if `ring`. `total`: bytes that are read into, if "warm".
    """

    kind: str
    verb: str
    ring: bool
    block: int
    width: int
    total: int = 0


class Fio:
    """One fio, on one file."""

    def __init__(self, program: str, path: Path, file_bytes: int) -> None:
        self.program = program
        self.path = path
        self.file_bytes = file_bytes
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        self.version = done.stdout.strip()

    def gib_s(self, setting: Setting) -> float:
        """Run it. Raises CalledProcessError, and ValueError if it moved nothing."""
        done = subprocess.run(
            self.command(setting), capture_output=True, text=True, check=True, timeout=60
        )
        said = json.loads(done.stdout[done.stdout.index("{") :])
        moved = said["jobs"][0][setting.verb]
        if not moved["io_bytes"]:
            raise ValueError(f"fio moved nothing: {done.stderr}")
        return moved["bw_bytes"] / GIB

    def command(self, setting: Setting) -> list[str]:
        """The command line."""
        kind, verb, ring, block, width, total = setting
        in_batches = kind in ("warm", "small")
        jobs = 1 if ring else width
        depth = width if ring else 1
        made = [
            self.program, "--name=l3", f"--filename={self.path}", f"--rw=rand{verb}",
            f"--bs={block}", f"--direct={int(kind == 'direct')}", f"--numjobs={jobs}", "--thread",
            "--group_reporting", "--randrepeat=0", "--output-format=json", "--overwrite=1",
            "--invalidate=0", "--disk_util=0", "--mem=mmap",
        ]  # fmt: skip
        if kind == "cold":
            part = self.file_bytes // jobs // block * block
            made += [f"--size={part}", f"--offset_increment={part}"]
        else:
            made += [f"--size={self.file_bytes}", "--norandommap"]
        made += ["--time_based", f"--runtime={RUN_MS}ms"]
        made += [f"--ramp_time={RAMP_MS}ms"] if in_batches else []
        if in_batches:
            depth = max(1, max(total // width, SMALL_BYTES) // block)
            made += [f"--iodepth_batch={depth}", f"--iodepth_batch_complete_min={depth}"]
        made += [f"--iodepth={depth}"]
        if in_batches:
            made += ["--ioengine=io_uring", "--registerfiles"]
        elif ring:
            made += ["--ioengine=io_uring", "--registerfiles"]
            made += ["--fixedbufs"] if kind == "direct" else []
        else:
            made += ["--ioengine=psync"]
        return made
