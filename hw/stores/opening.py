"""The store that a scenario names, opened, and its devices by queue.

    hw.store    is                                                   it outlives the run
    slots       the L3 file of this run, its slots by name           no
    file        SGLang's folder of files, hw.store_path              yes
    dynamic     a class, hw.store_class, hw.store_config             as it likes

Whose pages they are is in their names: the served name of the model. K and V that no weights
computed (random ones, or the pattern of the synthetic device) get a name of their own, so that
nobody takes them for the model's. Refuses to open a folder from which it would first have to remove
what others put there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicache.errors import InputError
from hicache.options import EngineOptions
from hicache.requests import Request
from hw.device import Device
from hw.storage.file_store import FileStore
from hw.storage.host import HostMemory
from hw.stores.contract import PageStore
from hw.stores.device import StoreCounts, store_devices
from hw.stores.names import Owner
from hw.stores.page_names import PageNames
from hw.stores.page_order import PageOrder, PageShape
from hw.stores.sglang_file import SglangFileStore
from hw.stores.slot_store import SlotStore
from hw.tokens import TokenBook, Tokens
from scenario.geometry import ModelGeometry
from scenario.records import HwOptions, Scenario
from scenario.sglang_config import read_mapping

if TYPE_CHECKING:
    from hw.pools import KvLayout

# Operations of a store are of this many pages for each call of a foreign class
# (`hw.stores.staging.BATCH_PAGES`), and make up to so many calls for each.
CALL_PAGES = 128
CALLS = 3
# Which keys of `hw` belong to which kind of store.
_KEYS_OF: dict[str, tuple[str, ...]] = {
    "slots": ("l3_backend", "l3_path", "checksum", "l3_workers"),
    "file": ("store_path", "store_model", "store_layout", "l3_workers", "store_timeout_s"),
    "dynamic": (
        "store_model", "store_layout", "store_class", "store_config", "store_timeout_s",
    ),
}  # fmt: skip


class OpenStore:
    """A store of one run. `queues`: its devices, which close it when all of them are closed.

    slack_s: how much longer than other devices these may be silent: their own time limits come
    first. `counts`: what they did.
    """

    def __init__(
        self,
        scenario: Scenario,
        options: EngineOptions,
        geometry: ModelGeometry,
        layout: KvLayout,
        host: HostMemory,
    ) -> None:
        """Raises InputError."""
        hw = scenario.hw
        self.kind = hw.store
        self.counts = StoreCounts()
        self._book: TokenBook | None = None
        self._names = PageNames(options.page_size_tokens, self._tokens)
        self.pages_at_start = 0
        self.slack_s = 0.0
        if hw.store == "slots":
            self.store: PageStore = SlotStore(open_slots(hw, options.storage_pages, host))
        else:
            batch = max(options.prefetch.query_batch_pages, options.prefetch.read_batch_pages)
            self.slack_s = CALLS * hw.store_timeout_s * -(-batch // CALL_PAGES)
            owner = _owner(scenario, geometry)
            if hw.store == "file":
                self.store = self._folder(hw, owner, layout, host, options)
            else:
                self.store = _foreign(hw, owner, layout, host, options.prefetch.workers)
        self._what = self.store.describe()  # before it is closed
        asking, writing, *reading = store_devices(
            self.store, self._names.names, 2 + options.prefetch.workers, self.counts
        )
        self.queues: dict[str, list[Device]] = {
            "lookup": [asking], "h2s": [writing], "s2h": [*reading],
        }  # fmt: skip

    def learning(self, requests: Iterable[Request], book: TokenBook) -> Iterator[Request]:
        """The requests, whose pages then have names. `book` makes their tokens; nobody else may use
        it.
        """
        self._book = book
        return self._names.learning(requests)

    def describe(self) -> str:
        """What was opened, for people: one line."""
        held = f", {self.pages_at_start} pages there already" if self.kind == "file" else ""
        return self._what + held

    def summary(self) -> dict[str, object]:
        """What it was and did, for the result."""
        return {
            "kind": self.kind,
            "what": self._what,
            "pages_at_start": self.pages_at_start,
            **self.counts.as_table(),
        }

    def _tokens(self, request: Request, upto: int) -> Tokens:
        assert self._book is not None, "no request was read yet"
        return self._book.tokens(request, upto)

    def _folder(
        self,
        hw: HwOptions,
        owner: Owner,
        layout: KvLayout,
        host: HostMemory,
        options: EngineOptions,
    ) -> SglangFileStore:
        if not hw.store_path:
            raise InputError("hw.store is file: name its folder, hw.store_path")
        folder = Path(hw.store_path)
        order = PageOrder(PageShape.of(layout), hw.store_layout)
        page_bytes, limit = order.shape.page_bytes, options.storage_pages
        self.pages_at_start, held_bytes = _held(folder, owner)
        if held_bytes > limit * page_bytes:
            raise InputError(
                f"hw.store_path is {folder}: its files *{owner.suffix}.bin have {held_bytes} bytes "
                f"and tiers.l3 is {limit} pages of {page_bytes}: files would have to be removed "
                "before the run; make tiers.l3 larger, or remove them yourself"
            )
        return SglangFileStore(
            folder, owner, order, host, limit_bytes=limit * page_bytes, workers=hw.l3_workers,
            timeout_s=hw.store_timeout_s,
        )  # fmt: skip


def open_slots(hw: HwOptions, pages: int, host: HostMemory) -> FileStore:
    """The L3 file. Raises InputError."""
    return FileStore(
        Path(hw.l3_path) if hw.l3_path else None,
        pages,
        host.page_bytes,
        host,
        backend=hw.l3_backend,
        workers=hw.l3_workers,
        checksum=hw.checksum,
    )


def idle_store_keys(hw: HwOptions, options: EngineOptions) -> list[str]:
    """A warning for each key of a store that was set and changes nothing in a real run."""
    usual = HwOptions()
    if options.has_store:
        used, why = {"store", *_KEYS_OF[hw.store]}, f"hw.store is {hw.store}"
    else:
        used, why = {*_KEYS_OF["slots"]}, 'there is no L3 whose storage.index is "store"'
    every = {"store", *(name for names in _KEYS_OF.values() for name in names)}
    return [
        f"hw.{name} is {getattr(hw, name)} but has no effect: {why}"
        for name in HwOptions.__struct_fields__
        if name in every - used and getattr(hw, name) != getattr(usual, name)
    ]


def _owner(scenario: Scenario, geometry: ModelGeometry) -> Owner:
    hw = scenario.hw
    name = hw.store_model
    if not name:
        mark = ".synthetic" if hw.compute == "synthetic" else "" if hw.weights else ".random"
        name = geometry.name + mark
    return Owner(model=name, kind=geometry.kind)


def _held(folder: Path, owner: Owner) -> tuple[int, int]:
    """How many pages of this owner a folder holds, and their bytes."""
    pages = size_bytes = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if owner.owns(entry.name) and entry.is_file():
                    pages += 1
                    size_bytes += entry.stat().st_size
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"hw.store_path is {folder}: {error.strerror}") from None
    return pages, size_bytes


def _foreign(
    hw: HwOptions, owner: Owner, layout: KvLayout, host: HostMemory, readers: int
) -> PageStore:
    from hw.stores.dynamic import BERTHS, DynamicStore

    config = read_mapping(hw.store_config, "hw.store_config") if hw.store_config else {}
    module, name = _class_of(hw.store_class, config)
    return DynamicStore(
        module, name, owner, layout, host, extra_config=config, memory_layout=hw.store_layout,
        timeout_s=hw.store_timeout_s, berths=max(BERTHS, readers + 1),
    )  # fmt: skip


def _class_of(text: str, config: Mapping[str, Any]) -> tuple[str, str]:
    if text:
        module, colon, name = text.partition(":")
        if not (module and colon and name):
            raise InputError(f"hw.store_class is {text}: write MODULE:CLASS")
        return module, name
    module, name = config.get("module_path"), config.get("class_name")
    if not isinstance(module, str) or not isinstance(name, str):
        raise InputError(
            "hw.store is dynamic: name its class, hw.store_class = MODULE:CLASS, or module_path "
            "and class_name in hw.store_config"
        )
    return module, name
