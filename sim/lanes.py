"""The simulated machine behind the engine's port.

    SimMachine                     one host's hardware model, from a profile; a factory of lanes
      lanes() -> SimLanes          one engine's own host thread, PCIe link and GPU
      disk, or store               shared by all of them

An engine of several tensor-parallel ranks has a GPU, a link and a thread for each, which do the
same at the same time: one of each is simulated. Their ways to L3 are not one: all use the one
device.

Every operation passes the engine's thread (`sim.host`), then its device. A device finishes it when
it is done; nothing is on SimPy's queue as a completion before that, because sharing and cut bursts
move ends.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from simpy import Environment

from hicache.errors import InputError
from hicache.kernel import Pending
from hicache.operations import Batches, Completion, Copy, Decode, Lookup, Operation
from hicache.store_contents import StoreContents
from report.run import Outside
from scenario.host_layout import HostLayout
from scenario.profile import Estimate, Profile
from scenario.stores import StoreProfile
from scenario.transfer_mode import TransferMode, chosen_mode
from sim.batched_writes import BatchedWrites
from sim.contention import Contention
from sim.disk import Disk
from sim.every_rank import EveryRank
from sim.gpu import Gpu
from sim.host import Host
from sim.host_pieces import HostPieces
from sim.keyed_store import KeyedStore
from sim.layered import staged_groups
from sim.pcie import Link
from sim.ranges import RangeWatch
from sim.scaling import Geometry
from sim.step_model import StepModel, step_model
from sim.stores import SharedStore, StoreClient
from sim.tensor_parallel import of_ranks

Storage = Disk | StoreClient | EveryRank | KeyedStore


class SimLanes:
    """One engine's devices (`hicache.ports.Lanes`). All lanes of an environment share `numbers`.
    `others`: threads and ways to a store of ranks 1 and up.
    """

    def __init__(
        self,
        env: Environment,
        host: Host,
        link: Link,
        disk: Storage,
        gpu: Gpu,
        *,
        numbers: Iterator[int],
        others: Sequence[tuple[Host, KeyedStore]] = (),
    ) -> None:
        self._env: Any = env  # its times are ints
        self._host = host
        self._link = link
        self._disk: Storage = disk
        self._gpu = gpu
        self._others = tuple(others)
        self._numbers = numbers
        self.batched: BatchedWrites | None = None

    def submit(self, operation: Operation) -> Pending[Completion]:
        """Take `operation`; who awaits it gets a `Completion`. A simulated machine never fails."""
        if self.batched is not None:
            self.batched.settle()
        now = self._env._now
        pending: Pending[Completion] = Pending(self._env, next(self._numbers), now)
        if type(operation) is Copy:
            if operation.rank:
                host, store = self._others[operation.rank - 1]
                store.submit(pending, operation, host.issue_copy(now, operation))
                return pending
            ready_ns = self._host.issue_copy(now, operation)
            if operation.direction in ("h2d", "d2h"):
                self._link.submit(pending, operation, ready_ns)
            else:
                self._disk.submit(pending, operation, ready_ns)
        elif type(operation) is Lookup:
            storage = self._others[operation.rank - 1][1] if operation.rank else self._disk
            assert isinstance(storage, KeyedStore), "only a store is asked by key"
            storage.lookup(pending, operation)
        else:
            host = self._host  # its thread is busy before the step or burst is ready
            free_ns = host.free_ns
            took_ns = host.burst_ns if type(operation) is Decode else host.step_ns
            host.free_ns = ready_ns = (now if now > free_ns else free_ns) + took_ns
            self._gpu.submit(pending, operation, ready_ns)
        return pending

    def submit_batches(self, copy: Copy, batch_pages: int) -> Pending[Batches] | None:
        """As `hicache.ports.BatchingLanes` says."""
        return self.batched.submit(copy, batch_pages) if self.batched is not None else None

    def end_burst(self, pending: Pending[Completion]) -> None:
        """Ask a `Decode` to end at its next step boundary; one that is over is left alone."""
        if not pending.triggered:
            self._gpu.end_burst(pending)


class SimMachine:
    """A machine in one environment, from its profile.

    `geometry`: the model that runs, None for the one whose steps were sampled; another is scaled.
    `keeps_step_ends`: whether completions of bursts list the end of every step, which records need
    and the engine does not. `numbers`: a counter that lanes outside this machine share.
    `store`: what L3 lies in; None: the disk. `backend`: of `hw.transfers`, for mode "backend".
    `host_layout`: in which pages lie in L2, of `kv_parts` parts a layer (K and V, or one latent).
    `disk_workers`, `copy_threads`: the profile's if None; so many disk workers serve either
    direction. `contents`: what is in L3, where that is a store that is asked by page key, and not
    the engine's own; of a page's only object, or of each: equally many for every rank. `ranks`:
    tensor-parallel ranks of each engine, of which `writing_ranks` write L3 and all read it;
    `geometry` is that of the whole model. `page_bytes`: of a page, by which layers are loaded in
    groups; of 0 bytes there are the fewest. Raises InputError for a transfer mode that the profile
    knows nothing of, and for steps that were sampled on another number of ranks.
    """

    def __init__(
        self,
        env: Environment,
        profile: Profile,
        geometry: Geometry | None = None,
        *,
        transfer_mode: TransferMode = "auto",
        backend: str = "auto",
        disk_workers: int | None = None,
        copy_threads: int | None = None,
        numbers: Iterator[int] | None = None,
        keeps_step_ends: bool = True,
        store: StoreProfile | None = None,
        contents: StoreContents | Sequence[StoreContents] | None = None,
        ranks: int = 1,
        writing_ranks: int = 1,
        host_layout: HostLayout = "page_major",
        kv_parts: int = 2,
        page_bytes: int = 0,
    ) -> None:
        for key, number in (("disk_workers", disk_workers), ("copy_threads", copy_threads)):
            if number is not None and number < 1:
                raise InputError(f"{key} is {number}: it must be 1 or more")
        self.profile = profile
        self._numbered_alone = numbers is None
        self.numbers: Iterator[int] = numbers if numbers is not None else count()
        self._batched: BatchedWrites | None = None
        self._env: Any = env  # its times are ints
        self._keeps_step_ends = keeps_step_ends
        self._transfer_mode: TransferMode = chosen_mode(profile.pcie, transfer_mode, backend)
        self._backend = backend
        self._copy_threads = copy_threads
        self._watch = RangeWatch()
        self._layers = (geometry or profile.gpu.model).layers
        self._staged_groups = staged_groups(self._layers, page_bytes)
        self._pieces: HostPieces | None = None
        if host_layout != "page_major":
            pieces = HostPieces(host_layout, self._transfer_mode, self._layers, kv_parts)
            if pieces.differ:
                self._pieces = pieces
        self.disk = Disk(env, profile.disk, disk_workers, self._watch, self._pieces)
        self.store = SharedStore(env, store) if store is not None else None
        self._contents: Sequence[StoreContents] = ()
        if contents is not None:
            self._contents = [contents] if isinstance(contents, StoreContents) else contents
        self._ranks = ranks
        self._writing_ranks = writing_ranks
        gpu, self._scaling = of_ranks(profile.gpu, geometry or profile.gpu.model, ranks)
        self.steps: StepModel = step_model(gpu, self._watch)

    def lanes(self) -> SimLanes:
        """Devices for one more engine: its own GPU, link and host; the one disk, or store."""
        host = self._host()
        parts = self.profile.interference
        contention = Contention(parts) if parts is not None else None
        link = Link(
            self._env, self.profile.pcie, host, self._transfer_mode, self._backend, contention,
            self._watch, self._pieces,
        )  # fmt: skip
        ahead = self.profile.gpu.steps_ahead
        mode = self._transfer_mode
        loads_staged = mode == "staged" or (mode == "backend" and self._backend == "staged")
        gpu = Gpu(
            self._env,
            self.steps,
            keeps_step_ends=self._keeps_step_ends,
            steps_ahead=ahead.value if ahead is not None else 0,
            link=link,
            layers=self._layers,
            groups=self._staged_groups if loads_staged else self._layers,
            contention=contention,
        )
        client = self.store.client(self._ranks) if self.store is not None else None
        device: Disk | StoreClient = client or self.disk
        storage: Storage = device
        others: list[tuple[Host, KeyedStore]] = []
        if self._contents:
            lookup_ns = client.lookup_ns if client is not None else self._look_on_disk_ns
            storage, *more = (
                KeyedStore(self._env, device, parts, lookup_ns) for parts in self._parts()
            )
            others = [(self._host(), each) for each in more]
        elif self._ranks > 1:
            storage = EveryRank(device, self._ranks, self._writing_ranks)
        lanes = SimLanes(self._env, host, link, storage, gpu, numbers=self.numbers, others=others)
        if self._batched is not None:
            self._batched.allowed = False  # another engine would see that its writes are late
        elif isinstance(storage, KeyedStore) and self._has_batches:
            batched = BatchedWrites(
                self._env, host, self.disk, self._contents[0], self._look_on_disk_ns(1),
                self.numbers,
            )  # fmt: skip
            self._batched = lanes.batched = storage.batched = batched
        return lanes

    @property
    def _has_batches(self) -> bool:
        """Whether an engine's writes to L3 can be seen by itself alone, for all that the machine
        knows.
        """
        only = self._ranks == 1 and len(self._contents) == 1
        return only and self.store is None and self._numbered_alone

    def end_batches(self) -> None:
        """The run ends before its time: batches that are over are counted."""
        if self._batched is not None:
            self._batched.end()

    def _host(self) -> Host:
        return Host(self.profile.host, self._watch, self._copy_threads, self._ranks)

    def _parts(self) -> list[Sequence[StoreContents]]:
        """Which contents each rank reads: a share of its own, or the only ones."""
        contents, ranks = self._contents, self._ranks
        if len(contents) == 1:
            return [contents] * ranks
        assert len(contents) % ranks == 0, "objects of a page that no rank would have whole"
        each = len(contents) // ranks
        return [contents[rank * each : (rank + 1) * each] for rank in range(ranks)]

    def _look_on_disk_ns(self, _pages: int) -> int:
        """A question to the machine's own disk takes as long as to begin to read."""
        return self.profile.disk.read_latency_ns.value

    def estimates(self) -> tuple[Estimate, ...]:
        """What results rest on though nobody measured it: the profile's, scaling, joint steps."""
        joint: tuple[Estimate, ...] = ()
        if self.steps.joint_prefills:
            how = (
                f"{self.steps.joint_prefills} prefill steps had several parts: their attention is "
                "one launch floor and what each part takes above it, which nobody measured"
            )
            joint = (Estimate("gpu.attention_prefill", how),)
        known = self.profile.estimates()
        if self.store is not None:
            known = tuple(each for each in known if not each.key.startswith("disk."))
            known += self.store.profile.estimates()
        layout = (self._pieces.estimate(),) if self._pieces is not None else ()
        return (*known, *self._scaling, *joint, *layout)

    def outside_range(self) -> tuple[Outside, ...]:
        """What the run asked of the profile beyond its samples, so far."""
        return self._watch.outside_range()
