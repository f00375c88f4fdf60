"""Stores that several servers share, as a machine's profile has its disk: what each does for how
many bytes, and how each number is known.

    client <-- at most client_bytes_per_s --> store, at most total_bytes_per_s for all of them

A store is a model of three things: time before the first byte (of an operation, of each of its
pages, of a question), the rate of one client, and what all clients together can have. `medium` says
whether reads and writes have their rates to themselves ("duplex", a network) or take from one
("shared", disks). Hardly any of it is published for any of them: what nobody published is an
estimate whose `how` begins with "assumed", and results that rest on it say so. Replace a model by a
measured one: a JSON file of the same keys.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal

import msgspec

from hicache.errors import InputError
from scenario.profile import Estimate, Provenance, Quantity, sourced

Medium = Literal["duplex", "shared"]


class StoreProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of store. Rates in bytes/s, times in ns."""

    name: str
    # In words: what it is, and what it is taken to stand on.
    about: str
    medium: Medium
    read_client_bytes_per_s: Quantity
    read_total_bytes_per_s: Quantity
    write_client_bytes_per_s: Quantity
    write_total_bytes_per_s: Quantity
    # Once for an operation, before its first byte.
    read_latency_ns: Quantity
    write_latency_ns: Quantity
    # For each page of an operation, at its client: a page is an object with a name.
    page_ns: Quantity
    # A question which pages are there: once, and for each page asked for.
    lookup_ns: Quantity
    lookup_page_ns: Quantity
    # Operations of a client at once, in each direction; more wait.
    workers: Quantity

    def estimates(self) -> tuple[Estimate, ...]:
        """Every value that nobody measured or published, by keys `store.NAME`."""
        return tuple(
            Estimate(f"store.{key}", value.how)
            for key, value in sourced(self)
            if value.provenance == "estimate"
        )


def store_names() -> list[str]:
    """The stores that are known by name."""
    return sorted(STORES)


def load_store(name_or_path: str | os.PathLike[str]) -> StoreProfile:
    """The model of a known store, or that of a JSON file. Raises InputError."""
    given = os.fspath(name_or_path)
    found = STORES.get(given.strip().lower())
    if found is not None:
        return found
    if not (given.endswith(".json") or given.startswith(("/", "./", "../", "~"))):
        from scenario.names import nearest

        raise InputError(
            f"machine.store is {given!r}: no known store{nearest(given, store_names())}; known are "
            f"{', '.join(store_names())}; for another give the path of its model, a .json file"
        )
    try:
        with open(os.path.expanduser(given), "rb") as opened:
            text = opened.read()
    except OSError as error:
        raise InputError(f"{given}: {error.strerror}") from None
    return decode_store(text, given)


def decode_store(text: bytes, place: str) -> StoreProfile:
    """The model that a JSON text holds; `place` names it in errors. Raises InputError."""
    try:
        store = msgspec.json.decode(text, type=StoreProfile)
    except msgspec.DecodeError as error:
        at = re.match(r"(.*) - at `\$\.?(.*)`", str(error), re.DOTALL)
        raise InputError(f"{place}: {f'{at[2]}: {at[1]}' if at else error}") from None
    check_store(store, place)
    return store


def check_store(store: StoreProfile, place: str) -> None:
    """Raise InputError, beginning with `place` and the key, for values that no store can have."""
    for key, value in sourced(store):
        if not value.how.strip():
            raise InputError(f"{place}: {key}.how is empty: say in words how the value is known")
        assert isinstance(value, Quantity)
        least = 1 if key.endswith("_bytes_per_s") or key == "workers" else 0
        if value.value < least:
            raise InputError(f"{place}: {key}.value is {value.value}: it must be {least} or more")
    for way in ("read", "write"):
        client: Quantity = getattr(store, f"{way}_client_bytes_per_s")
        total: Quantity = getattr(store, f"{way}_total_bytes_per_s")
        if client.value > total.value:
            raise InputError(
                f"{place}: {way}_client_bytes_per_s.value is {client.value}, more than "
                f"{way}_total_bytes_per_s.value, which is {total.value}"
            )


def dump_store(store: StoreProfile) -> str:
    """The model as JSON text; `decode_store` reads back an equal one."""
    return msgspec.json.format(msgspec.json.encode(store), indent=1).decode() + "\n"


GB, GIB, TIB = 10**9, 1 << 30, 1 << 40
US = 1000


def _quantity(provenance: Provenance, value: int | float, how: str) -> Quantity:
    return Quantity(value=round(value), provenance=provenance, how=how)


def _published(value: int | float, how: str) -> Quantity:
    return _quantity("published", value, how)


def _inferred(value: int | float, how: str) -> Quantity:
    return _quantity("inferred", value, how)


def _assumed(value: int | float, how: str) -> Quantity:
    return _quantity("estimate", value, f"assumed: {how}")


def _times(
    operation_us: float, page_us: float, lookup_us: float, lookup_page_us: float, why: str
) -> dict[str, Any]:
    """The times of a store of which none is published."""
    return {
        "read_latency_ns": _assumed(operation_us * US, f"{why}, then the data's way"),
        "write_latency_ns": _assumed(2 * operation_us * US, "as for a read, and the commit behind"),
        "page_ns": _assumed(page_us * US, "the client's work for one object of a batch"),
        "lookup_ns": _assumed(lookup_us * US, why),
        "lookup_page_ns": _assumed(lookup_page_us * US, "a look into a hash table, for each name"),
    }


_RPC = "one call over the network and back"
_WORKERS = _assumed(1, "SGLang reads with one thread and writes with one")
_NIC_400 = 50 * GB


def _mooncake() -> StoreProfile:
    te = "Mooncake's README: Transfer Engine, 40 GB over 4 x 200 Gb/s RoCE"
    pool = "four hosts lend memory to the pool, each as fast as a client"
    return StoreProfile(
        name="mooncake",
        about="Mooncake Store: a pool of host memory over RDMA, one client with four 200 Gb/s NICs",
        medium="duplex",
        read_client_bytes_per_s=_published(87 * GB, te),
        read_total_bytes_per_s=_assumed(4 * 87 * GB, pool),
        write_client_bytes_per_s=_inferred(87 * GB, f"as fast as reads, one replica; {te}"),
        write_total_bytes_per_s=_assumed(4 * 87 * GB, pool),
        workers=_WORKERS,
        **_times(50, 5, 100, 1, f"{_RPC} to the master, which knows where pages lie"),
    )


def _hf3fs() -> StoreProfile:
    readme = "3FS's README"
    return StoreProfile(
        name="hf3fs",
        about="3FS by USRBIO: the published cluster of 180 storage nodes, clients with 400 Gb/s",
        medium="shared",
        read_client_bytes_per_s=_published(
            40 * GIB, f"{readme}: peak of the KV cache clients, one 400 Gb/s NIC each"
        ),
        read_total_bytes_per_s=_published(
            6.6 * TIB, f"{readme}: read stress test, 180 storage nodes, more than 500 clients"
        ),
        write_client_bytes_per_s=_assumed(
            40 / 3 * GIB, "a third of reads: every write goes down a chain of three replicas"
        ),
        write_total_bytes_per_s=_assumed(
            6.6 / 3 * TIB, "a third of reads: every write goes down a chain of three replicas"
        ),
        workers=_WORKERS,
        **_times(500, 10, 300, 1, f"{_RPC} to a metadata service"),
    )


def _nixl() -> StoreProfile:
    bench = "gds-bench.farmgpu.net/kvbench: nixlbench, DeepSeek-R1's blocks of 549 KB, GDS"
    one = "the servers of one host share its drives"
    return StoreProfile(
        name="nixl",
        about="NIXL with a file plug-in on the host's own NVMe drives",
        medium="shared",
        read_client_bytes_per_s=_published(16.4 * GIB, bench),
        read_total_bytes_per_s=_inferred(16.4 * GIB, f"{one}; {bench}"),
        write_client_bytes_per_s=_assumed(8.2 * GIB, "half of reads, as NVMe drives do"),
        write_total_bytes_per_s=_assumed(8.2 * GIB, f"half of reads, as NVMe drives do; {one}"),
        workers=_WORKERS,
        **_times(100, 28, 20, 2, "calls of the file system"),
    )


def _pool(
    name: str, about: str, nics: int, servers: int, times: tuple[float, float, float, float]
) -> StoreProfile:
    """A pool of memory over RDMA of which no rate is published: the NICs' share of their line."""
    client = f"{nics} x 400 Gb/s at 80 % of the line; no bandwidth of {name} is published"
    total = f"{servers} servers with the client's NICs; no bandwidth of {name} is published"
    client_rate = 0.8 * nics * _NIC_400
    return StoreProfile(
        name=name,
        about=about,
        medium="duplex",
        read_client_bytes_per_s=_assumed(client_rate, client),
        read_total_bytes_per_s=_assumed(servers * client_rate, total),
        write_client_bytes_per_s=_assumed(client_rate, client),
        write_total_bytes_per_s=_assumed(servers * client_rate, total),
        workers=_WORKERS,
        **_times(*times, _RPC),
    )


STORES: dict[str, StoreProfile] = {
    store.name: store
    for store in (
        _mooncake(),
        _hf3fs(),
        _nixl(),
        _pool("aibrix", "AIBrix KVCache, L2 in InfiniStore over RDMA", 1, 3, (60, 10, 100, 2)),
        _pool("eic", "Volcano Engine's Elastic Instant Cache over RDMA", 1, 8, (60, 8, 100, 1)),
        _pool(
            "simm",
            "SiMM: a pool of memory on three data servers, as in its README's test, over RDMA "
            "with all eight NICs of a client",
            8,
            3,
            (20, 4, 20, 1),
        ),
    )
}
