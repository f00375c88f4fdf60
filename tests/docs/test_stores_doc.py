"""docs/stores.md: its table is of the models, its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scenario.profile import Quantity
from scenario.stores import STORES, StoreProfile, store_names

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "stores.md"
TEXT = PAGE.read_text(encoding="utf-8")
GB, US = 10**9, 1000


def shown(value: Quantity, unit: int) -> str:
    number = value.value / unit
    text = f"{number:,.10g}" if unit == US else f"{number:,.1f}"
    return text if value.provenance == "estimate" else f"**{text}**"


def row(store: StoreProfile) -> str:
    rates = [
        ", ".join(
            shown(getattr(store, f"{way}_{whose}_bytes_per_s"), GB) for whose in ("client", "total")
        )
        for way in ("read", "write")
    ]
    times = [
        f"{shown(store.read_latency_ns, US)}, {shown(store.write_latency_ns, US)}",
        shown(store.page_ns, US),
        f"{shown(store.lookup_ns, US)}, {shown(store.lookup_page_ns, US)}",
    ]
    return f"| `{store.name}` | {store.medium} | {' | '.join([*rates, *times])} |"


def table() -> str:
    head = (
        "| store | medium | read GB/s: client, all | write GB/s: client, all | read, write us "
        "| page us | question us: once, page |\n|---|---|---:|---:|---:|---:|---:|\n"
    )
    return head + "".join(row(STORES[name]) + "\n" for name in store_names())


def test_the_table_is_of_the_models() -> None:
    found = re.search(r"<!-- stores -->\n(.*?)<!-- end of stores -->", TEXT, re.S)
    assert found is not None
    assert found[1] == table()


def test_every_store_is_spoken_of() -> None:
    for name in store_names():
        assert re.search(rf"^\* .*`{name}`", TEXT, re.M), name
    words = (REPOSITORY / "docs" / "scenario.md").read_text(encoding="utf-8")
    assert all(f'`"{name}"`' in words for name in store_names())


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    assert len(blocks) == 3
    for block in blocks[:2]:
        exec(compile(block, "docs/stores.md", "exec"), {})
    assert "needs torch" in blocks[2]
