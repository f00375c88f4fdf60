"""Workers for the cells of a sweep: the cores of this machine, or a cluster by Ray.

On this machine they are forks of this process, which are ready at once, or joblib's where forking
is not safe (`sim.forked`). All are handed a cell, give its figures in whatever order they come, and
may be killed: the cell is run again. A cell that has taken `ATTEMPTS` workers with it ends the
sweep, for it will take the next one, too (memory, most often). Results do not depend on how many
workers there are, nor on where they run.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from hicache.errors import HiCacheError, InputError
from sim.forked import ForkedWorkers
from sim.sweep_cell import Done, Job, run_job

ATTEMPTS = 4
LOCAL = "local"
KNOCK_S = 5

# Of this process, as joblib's are.
_forked = ForkedWorkers()


class WorkersLost(HiCacheError):
    """Workers were killed again and again. Arguments: a message for people."""


class Lost:
    """How many workers were killed, for a word about it."""

    def __init__(self) -> None:
        self.workers = 0


def cores() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def start_workers(workers: int) -> None:
    """Have so many workers ready for `run_here`, where they can be forked; else it starts them."""
    if workers > 1:
        _forked.start(workers)


def run_here(jobs: Sequence[Job], workers: int, lost: Lost) -> Generator[Done]:
    """Run `jobs` on `workers` cores of this machine; one: in this process. The workers are there
    when it returns, and stay for the next call, until `end_workers`. Call it before what starts a
    thread. Iterating raises WorkersLost, and whatever a bug in a cell raises.
    """
    workers = min(workers, len(jobs))
    if workers < 2:
        return _in_this_process(jobs)
    start_workers(workers)
    return _on_workers(jobs, workers, lost)


def _in_this_process(jobs: Sequence[Job]) -> Generator[Done]:
    # A caller who has put aside what a collection would look through wants it to stay there.
    frozen_before = gc.get_freeze_count()
    try:
        for job in jobs:
            yield _at_worker(run_job, job)
    finally:
        if not frozen_before:
            gc.unfreeze()


def _on_workers(jobs: Sequence[Job], workers: int, lost: Lost) -> Generator[Done]:
    left = {job.number: job for job in jobs}
    in_vain = 0
    while left:
        before = len(left)
        for done in _once_through(list(left.values()), workers):
            del left[done.number]
            yield done
        if not left:
            return
        lost.workers += 1
        in_vain = in_vain + 1 if len(left) == before else 0
        if in_vain == ATTEMPTS - 1:
            raise _given_up(min(left), len(left))


def _once_through(jobs: Sequence[Job], workers: int) -> Generator[Done]:
    """Every job, or those that were done when a worker was killed."""
    if _forked.start(workers):
        yield from _forked.run(partial(_at_worker, run_job), jobs, workers)
        return
    _forked.end()
    # Neither says what its types are.
    joblib: Any = import_module("joblib")
    loky: Any = import_module("joblib.externals.loky")

    with _quiet():
        try:
            parallel = joblib.Parallel(
                n_jobs=workers,
                return_as="generator_unordered",
                batch_size=1,
                initializer=_begin_worker,
            )
            yield from parallel(joblib.delayed(_at_worker)(run_job, job) for job in jobs)
        except loky.process_executor.TerminatedWorkerError:
            return


def end_workers() -> None:
    """End the workers that `run_here` keeps for its next call, with what they have parsed. Else
    they would outlive a command that ends at once.
    """
    _forked.end()
    loky: Any = sys.modules.get("joblib.externals.loky")
    if loky is not None:
        loky.get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def run_on_ray(jobs: Sequence[Job], address: str, workers: int) -> Generator[Done]:
    """Run `jobs` on the Ray cluster at `address`; "local": on one of `workers` cores, made for it.

    Ray itself runs a cell again whose worker or node was killed. Raises InputError where there is
    no such cluster, or no Ray, and WorkersLost.
    """
    try:
        ray: Any = import_module("ray")
        errors: Any = import_module("ray.exceptions")
    except ImportError:
        raise InputError("--ray needs Ray: pip install 'hicache-lab[ray]'") from None
    _connect(ray, address, workers)
    try:
        run = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(run_job)
        waiting = {run.remote(job): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for each in ready:
                job = waiting.pop(each)
                try:
                    yield ray.get(each)
                except (errors.WorkerCrashedError, errors.OutOfMemoryError,
                        errors.NodeDiedError) as error:  # fmt: skip
                    raise _given_up(job.number, 1 + len(waiting)) from error
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str, workers: int) -> None:
    options: dict[str, Any] = {"num_cpus": workers} if address == LOCAL else {}
    try:
        _knock(address)
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False if address == LOCAL else None,
            **options,
        )
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"--ray {address}: no cluster there: {reason}") from None


def _knock(address: str) -> None:
    """Raises OSError where nobody answers at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), KNOCK_S).close()


def _given_up(number: int, left: int) -> WorkersLost:
    return WorkersLost(
        f"workers were killed {ATTEMPTS} times running scenario {number + 1} or those beside it "
        f"({left} are not done), which memory does most often: try fewer --jobs; what is done is "
        "kept"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without joblib's words on a worker that has left: it is said in ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*worker.*", category=UserWarning)
        yield


def _begin_worker() -> None:
    # Ctrl-C is left to the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As in the command's own process: every cell ends with a collection (sim.sweep_cell).
    gc.disable()


def _at_worker(run: Callable[[Job], Done], job: Job) -> Done:
    try:
        return run(job)
    finally:
        # What is left is kept (traces, most of it), and would be looked through at each collection:
        # ours, and joblib's own every second. sim.sweep_trace takes it back.
        gc.freeze()
