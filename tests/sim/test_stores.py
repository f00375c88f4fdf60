"""Stores that several engines share: by hand, against a naive one, and value by value."""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from typing import NamedTuple

import msgspec
import pytest
from by_hand import H200_BY_HAND
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes_contract import at
from simpy import Environment
from test_two_engines import OPTIONS, requests

from hicache.engine import Engine
from hicache.errors import InputError
from scenario.profile import Quantity, load_profile, sourced
from scenario.stores import (
    STORES,
    StoreProfile,
    check_store,
    decode_store,
    dump_store,
    load_store,
    store_names,
)
from sim.lanes import SimMachine
from sim.stores import READ, WRITE, SharedStore

GIB = 1 << 30
S = 1_000_000_000


def quantity(value: int) -> Quantity:
    return Quantity(value=value, provenance="measured", how="by hand")


def by_hand(**values: int | str) -> StoreProfile:
    """1 GiB/s for a client and for all, no latency, two workers; and what is given."""
    numbers = {
        "read_client_bytes_per_s": GIB, "read_total_bytes_per_s": GIB,
        "write_client_bytes_per_s": GIB, "write_total_bytes_per_s": GIB,
        "read_latency_ns": 0, "write_latency_ns": 0, "page_ns": 0, "lookup_ns": 0,
        "lookup_page_ns": 0, "workers": 2, **values,
    }  # fmt: skip
    medium = numbers.pop("medium", "duplex")
    return StoreProfile(
        name="by-hand",
        about="a test",
        medium=medium,  # type: ignore[arg-type]
        **{key: quantity(value) for key, value in numbers.items()},  # type: ignore[arg-type]
    )


class Ask(NamedTuple):
    """One transfer of the test."""

    submit_ns: int
    client: int
    size_bytes: int
    direction: int = READ
    pages: int = 1
    ready_ns: int = 0


def ends(profile: StoreProfile, asks: list[Ask], clients: int = 4) -> list[int]:
    """When each ends."""
    env = Environment(0)
    store = SharedStore(env, profile)
    ways = [store.client() for _ in range(clients)]
    ended = [-1] * len(asks)

    def submit(number: int, ask: Ask) -> None:
        def finished(started_ns: int, finished_ns: int) -> None:
            assert started_ns >= max(ask.submit_ns, ask.ready_ns)
            assert finished_ns == env.now
            ended[number] = finished_ns

        ways[ask.client].move(
            ask.direction, ask.pages, ask.size_bytes, number, ask.ready_ns, finished
        )

    for number, ask in enumerate(asks):
        at(env, ask.submit_ns, lambda number=number, ask=ask: submit(number, ask))
    env.run()
    assert store.under_way == 0
    assert sum(store.moved_bytes) == sum(ask.size_bytes for ask in asks)
    return ended


def test_two_reads_of_one_client_share_its_rate():
    assert ends(by_hand(), [Ask(0, 0, GIB), Ask(S // 2, 0, GIB)]) == [3 * S // 2, 2 * S]


def test_two_clients_share_the_total():
    assert ends(by_hand(), [Ask(0, 0, GIB), Ask(S // 2, 1, GIB)]) == [3 * S // 2, 2 * S]


def test_each_client_has_its_own_rate_while_the_total_lasts():
    profile = by_hand(read_total_bytes_per_s=2 * GIB)
    assert ends(profile, [Ask(0, client, GIB) for client in range(2)]) == [S, S]
    assert ends(profile, [Ask(0, client, GIB) for client in range(4)]) == [2 * S] * 4


def test_clients_share_and_not_transfers():
    """One client with two reads gets no more than the other with one."""
    asks = [Ask(0, 0, GIB // 2), Ask(0, 0, GIB // 2), Ask(0, 1, GIB)]
    assert ends(by_hand(), asks) == [2 * S] * 3


def test_duplex_lets_reads_and_writes_be():
    asks = [Ask(0, 0, GIB), Ask(0, 0, GIB, WRITE)]
    assert ends(by_hand(), asks) == [S, S]
    assert ends(by_hand(medium="shared"), asks) == [2 * S, 2 * S]


def test_latency_and_pages_take_time_and_no_bandwidth():
    profile = by_hand(read_latency_ns=100, page_ns=10)
    assert ends(profile, [Ask(0, 0, GIB, pages=5), Ask(0, 1, 1)])[1] < 120
    assert ends(profile, [Ask(0, 0, GIB, pages=5)]) == [S + 150]


def test_what_has_no_worker_waits():
    profile = by_hand(workers=1, read_latency_ns=100)
    assert ends(profile, [Ask(0, 0, GIB), Ask(0, 0, GIB)]) == [S + 100, 2 * S + 200]
    profile = by_hand(workers=1)
    asks = [Ask(0, 0, GIB), Ask(0, 0, GIB, WRITE), Ask(0, 1, 1)]
    assert ends(profile, asks)[1] == S, "the other direction has a worker of its own"


def test_an_operation_begins_when_the_engine_has_it_ready():
    assert ends(by_hand(), [Ask(0, 0, GIB, ready_ns=700)]) == [S + 700]


def test_a_question_takes_its_time():
    client = SharedStore(Environment(0), by_hand(lookup_ns=1000, lookup_page_ns=7)).client()
    assert client.lookup_ns(128) == 1000 + 128 * 7
    assert client.lookup_ns(1) == 1007
    assert client.lookup_ns(0) == 1000


# ------------------------------------------------------------------ against a naive one


def naive_ends(profile: StoreProfile, asks: list[Ask], clients: int) -> list[Fraction]:
    """The same in exact fractions, by stepping from change to change."""
    client_rates = [
        Fraction(profile.read_client_bytes_per_s.value, S),
        Fraction(profile.write_client_bytes_per_s.value, S),
    ]
    totals = [
        Fraction(profile.read_total_bytes_per_s.value, S),
        Fraction(profile.write_total_bytes_per_s.value, S),
    ]
    latencies = [profile.read_latency_ns.value, profile.write_latency_ns.value]
    waiting = {(c, d): deque[int]() for c in range(clients) for d in (READ, WRITE)}
    busy = dict.fromkeys(waiting, 0)
    joins: dict[int, Fraction] = {}
    left: dict[int, Fraction] = {}
    ended = [Fraction(-1)] * len(asks)
    to_come = sorted(range(len(asks)), key=lambda i: asks[i].submit_ns)
    now = Fraction(0)
    while to_come or joins or left or any(waiting.values()):
        while to_come and asks[to_come[0]].submit_ns <= now:
            number = to_come.pop(0)
            waiting[asks[number].client, asks[number].direction].append(number)
        for key, queue in waiting.items():
            while queue and busy[key] < profile.workers.value:
                number = queue.popleft()
                busy[key] += 1
                delay = latencies[key[1]] + asks[number].pages * profile.page_ns.value
                joins[number] = max(now, Fraction(asks[number].ready_ns)) + delay
        for number in [number for number, when in joins.items() if when <= now]:
            del joins[number]
            left[number] = Fraction(asks[number].size_bytes)
        rates = {}
        for number in left:
            client, direction = asks[number].client, asks[number].direction
            flows = {
                (asks[i].client, asks[i].direction)
                for i in left
                if profile.medium == "shared" or asks[i].direction == direction
            }
            mine = [i for i in left if (asks[i].client, asks[i].direction) == (client, direction)]
            flow = min(client_rates[direction], totals[direction] / len(flows))
            rates[number] = flow / len(mine)
        times = list(joins.values())
        times += [now + left[number] / rate for number, rate in rates.items()]
        times += [Fraction(asks[to_come[0]].submit_ns)] if to_come else []
        then = min(times)
        for number, rate in rates.items():
            left[number] -= rate * (then - now)
        now = then
        for number in [number for number, rest in left.items() if rest <= 0]:
            del left[number]
            ended[number] = now
            busy[asks[number].client, asks[number].direction] -= 1
    return ended


asks_of = st.lists(
    st.builds(
        Ask,
        submit_ns=st.integers(0, 5000),
        client=st.integers(0, 2),
        size_bytes=st.integers(1, 5000),
        direction=st.sampled_from([READ, WRITE]),
        pages=st.integers(1, 4),
        ready_ns=st.integers(0, 6000),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(
    asks=asks_of,
    client=st.integers(S // 2, 3 * S),
    more=st.integers(0, 4 * S),
    medium=st.sampled_from(["duplex", "shared"]),
    workers=st.integers(1, 3),
)
def test_ends_are_those_of_the_naive_store(
    asks: list[Ask], client: int, more: int, medium: str, workers: int
) -> None:
    profile = by_hand(
        read_client_bytes_per_s=client,
        read_total_bytes_per_s=client + more,
        write_client_bytes_per_s=client // 2,
        write_total_bytes_per_s=client // 2 + more,
        read_latency_ns=90,
        write_latency_ns=150,
        page_ns=11,
        medium=medium,
        workers=workers,
    )
    got = ends(profile, asks, 3)
    # Whole ns, rounded up, once for each that waits for another's end.
    for mine, naive in zip(got, naive_ends(profile, asks, 3), strict=True):
        assert abs(mine - naive) <= 2 * len(asks)


# ------------------------------------------------------------------ the models


@pytest.mark.parametrize("name", store_names())
def test_every_value_says_where_it_comes_from(name: str) -> None:
    store = STORES[name]
    check_store(store, name)
    values = dict(sourced(store))
    assert len(values) == 10
    for value in values.values():
        assert value.how.startswith("assumed: ") == (value.provenance == "estimate")
        if value.provenance == "published":
            assert re.search(r"README|bench", value.how), "no source is named"
    assumed = {key for key, value in values.items() if value.provenance == "estimate"}
    assert {estimate.key for estimate in store.estimates()} == {f"store.{key}" for key in assumed}


def test_there_are_the_six_stores_that_sglang_has() -> None:
    assert store_names() == ["aibrix", "eic", "hf3fs", "mooncake", "nixl", "simm"]


def total(profile: StoreProfile, direction: int, clients: int) -> int:
    """When all of so many clients have moved 64 MiB in 64 pages, twice."""
    asks = [Ask(0, client, 64 << 20, direction, pages=64) for client in range(clients)] * 2
    return max(ends(profile, asks, clients))


# 3FS has room for this many clients; the others are used up by fewer.
MANY = 200


@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize("name", store_names())
def test_halving_a_bandwidth_moves_its_total(name: str, way: str) -> None:
    """A client's rate is what one client waits for, the total what many do."""
    store, direction = STORES[name], READ if way == "read" else WRITE
    for what, clients in (("client", 1), ("total", MANY)):
        key = f"{way}_{what}_bytes_per_s"
        value = getattr(store, key)
        half = msgspec.structs.replace(value, value=value.value // 2)
        less = msgspec.structs.replace(store, **{key: half})
        before, after = total(store, direction, clients), total(less, direction, clients)
        assert after > 1.3 * before, key
        assert total(less, 1 - direction, clients) == total(store, 1 - direction, clients)


@pytest.mark.parametrize("key", ["read_latency_ns", "write_latency_ns", "page_ns"])
def test_every_time_matters(key: str) -> None:
    store = STORES["mooncake"]
    value = getattr(store, key)
    more = {key: msgspec.structs.replace(value, value=value.value * 1000)}
    slower = msgspec.structs.replace(store, **more)
    moved = [total(slower, way, 1) > 2 * total(store, way, 1) for way in (READ, WRITE)]
    assert moved == [key != "write_latency_ns", key != "read_latency_ns"]


def test_models_are_written_and_read_back(tmp_path) -> None:
    for store in STORES.values():
        (tmp_path / "store.json").write_text(dump_store(store))
        assert load_store(str(tmp_path / "store.json")) == store
    assert load_store(" Mooncake ") is STORES["mooncake"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.pop("workers"), "missing required field `workers`"),
        (lambda raw: raw.update(speed=1), "unknown field `speed`"),
        (lambda raw: raw["workers"].update(value=0), r"workers\.value is 0: it must be 1 or more"),
        (lambda raw: raw["page_ns"].update(value=-1), r"page_ns\.value is -1: it must be 0"),
        (lambda raw: raw["page_ns"].update(value="x"), r"page_ns\.value: Expected `int`"),
        (lambda raw: raw["page_ns"].update(how=" "), r"page_ns\.how is empty"),
        (lambda raw: raw["page_ns"].update(provenance="guessed"), r"page_ns\.provenance"),
        (lambda raw: raw.update(medium="string"), "medium"),
        (
            lambda raw: raw["read_client_bytes_per_s"].update(value=10**15),
            r"read_client_bytes_per_s\.value is 1000000000000000, more than",
        ),
    ],
)
def test_a_bad_model_is_refused(change, message: str) -> None:
    raw = msgspec.json.decode(dump_store(STORES["mooncake"]))
    change(raw)
    with pytest.raises(InputError, match=message) as caught:
        decode_store(msgspec.json.encode(raw), "s.json")
    assert str(caught.value).startswith("s.json: ")
    assert "\n" not in str(caught.value)


def test_a_store_that_is_not_there(tmp_path) -> None:
    with pytest.raises(InputError, match=r"no known store.*mooncake.*known are aibrix, eic"):
        load_store("moncake")
    with pytest.raises(InputError, match="No such file"):
        load_store(str(tmp_path / "x.json"))
    with pytest.raises(InputError, match="s: "):
        decode_store(b"{", "s")


# ------------------------------------------------------------------ engines over one store


def served(profile: StoreProfile, engines: int) -> list[Engine]:
    """Engines whose L3 is the store."""
    env = Environment(0)
    machine = SimMachine(env, load_profile(H200_BY_HAND), store=profile)
    running = []
    for place in range(engines):
        running.append(Engine(env, machine.lanes(), OPTIONS))
        running[-1].serve(requests(place * 1_000_000))
    env.run()
    for engine in running:
        engine.check_integrity()
        assert engine.metrics.requests == 12
    return running


def test_engines_share_the_bandwidth_of_the_store() -> None:
    slow = by_hand()
    alone = served(slow, 1)[0].metrics.directions["s2h"]
    for engine in served(slow, 2):
        stats = engine.metrics.directions["s2h"]
        assert stats.size_bytes == alone.size_bytes > 0
        assert stats.service_ns > 1.5 * alone.service_ns
    fast = by_hand(read_total_bytes_per_s=2 * GIB, write_total_bytes_per_s=2 * GIB)
    for engine in served(fast, 2):
        assert engine.metrics.directions["s2h"].service_ns == alone.service_ns


def test_engines_over_a_store_end_the_same_way_every_time() -> None:
    rows = [[each.metrics.rows for each in served(STORES["mooncake"], 2)] for _ in range(2)]
    assert rows[0] == rows[1]
