"""The simulated machine behind the engine's port.

    SimMachine                     one host's hardware model, from a profile; a factory of lanes
      lanes() -> SimLanes          one engine's own host thread, PCIe link and GPU
      disk                         shared by all of them

Every operation passes the engine's thread (`sim.host`), then its device. A device finishes it when
it is done; nothing is on SimPy's queue as a completion before that, because sharing and cut bursts
move ends.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from simpy import Environment

from hicache.errors import InputError
from hicache.kernel import Pending
from hicache.operations import Completion, Copy, Operation
from report.run import Outside
from scenario.profile import Estimate, Profile
from sim.disk import Disk
from sim.gpu import Gpu
from sim.host import Host
from sim.pcie import Link, TransferMode
from sim.ranges import RangeWatch
from sim.scaling import Geometry, scaled
from sim.step_model import StepModel, step_model


class SimLanes:
    """One engine's devices (`hicache.ports.Lanes`). All lanes of an environment share `numbers`."""

    def __init__(
        self,
        env: Environment,
        host: Host,
        link: Link,
        disk: Disk,
        gpu: Gpu,
        *,
        numbers: Iterator[int],
    ) -> None:
        self._env: Any = env  # its times are ints
        self._host = host
        self._link = link
        self._disk = disk
        self._gpu = gpu
        self._numbers = numbers

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Take `operation`; who awaits it gets a `Completion`. A simulated machine never fails."""
        now = self._env._now
        pending: Pending[Completion] = Pending(self._env, next(self._numbers), now)
        if type(operation) is Copy:
            ready_ns = self._host.issue_copy(now, operation)
            if operation.direction in ("h2d", "d2h"):
                self._link.submit(pending, operation, ready_ns)
            else:
                self._disk.submit(pending, operation, ready_ns)
        else:
            host = self._host  # its thread is busy for `step_ns` before the step is ready
            free_ns = host.free_ns
            host.free_ns = ready_ns = (now if now > free_ns else free_ns) + host.step_ns
            self._gpu.submit(pending, operation, ready_ns)
        return pending

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Ask a `Decode` to end at its next step boundary; one that is over is left alone."""
        if not pending.triggered:
            self._gpu.end_burst(pending)


class SimMachine:
    """A machine in one environment, from its profile.

    `geometry`: the model that runs, None for the one whose steps were sampled; another is scaled.
    `keeps_step_ends`: whether completions of bursts list the end of every step, which records need
    and the engine does not. `numbers`: a counter that lanes outside this machine share.
    `disk_workers`, `copy_threads`: the profile's if None. Raises InputError for a transfer mode
    that the profile knows nothing of.
    """

    def __init__(
        self,
        env: Environment,
        profile: Profile,
        geometry: Geometry | None = None,
        *,
        transfer_mode: TransferMode = "staged",
        disk_workers: int | None = None,
        copy_threads: int | None = None,
        numbers: Iterator[int] | None = None,
        keeps_step_ends: bool = True,
    ) -> None:
        for key, number in (("disk_workers", disk_workers), ("copy_threads", copy_threads)):
            if number is not None and number < 1:
                raise InputError(f"{key} is {number}: it must be 1 or more")
        self.profile = profile
        self.numbers: Iterator[int] = numbers if numbers is not None else count()
        self.disk = Disk(env, profile.disk, disk_workers)
        self._env: Any = env  # its times are ints
        self._keeps_step_ends = keeps_step_ends
        self._transfer_mode: TransferMode = transfer_mode
        self._copy_threads = copy_threads
        self._watch = RangeWatch()
        gpu, self._scaling = scaled(profile.gpu, geometry or profile.gpu.model)
        self.steps: StepModel = step_model(gpu, self._watch)

    def lanes(self) -> SimLanes:
        """Devices for one more engine: its own GPU, link and host, the machine's one disk."""
        host = Host(self.profile.host, self._watch, self._copy_threads)
        link = Link(self._env, self.profile.pcie, host, self._transfer_mode)
        gpu = Gpu(self._env, self.steps, keeps_step_ends=self._keeps_step_ends)
        return SimLanes(self._env, host, link, self.disk, gpu, numbers=self.numbers)

    def estimates(self) -> tuple[Estimate, ...]:
        """What results rest on though nobody measured it: the profile's, scaling, joint steps."""
        joint: tuple[Estimate, ...] = ()
        if self.steps.joint_prefills:
            how = (
                f"{self.steps.joint_prefills} prefill steps had several parts: their attention is "
                "one launch floor and what each part takes above it, which nobody measured"
            )
            joint = (Estimate("gpu.attention_prefill", how),)
        return (*self.profile.estimates(), *self._scaling, *joint)

    def outside_range(self) -> tuple[Outside, ...]:
        """What the run asked of the profile beyond its samples, so far."""
        return self._watch.outside_range()
