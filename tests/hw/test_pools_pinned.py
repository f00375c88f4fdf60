"""Host memory is taken piece by piece, only where there is room, and given back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hicache.errors import InputError
from hw.pinned import Free, PinnedMemory, free_memory

MIB = 1 << 20


class Registrar:
    """Notes what is pinned, and refuses from the `refuse_at`-th piece on."""

    def __init__(self, refuse_at: int | None = None) -> None:
        self.pinned: dict[int, int] = {}
        self.refuse_at = refuse_at

    def register(self, address: int, size_bytes: int) -> None:
        if len(self.pinned) == self.refuse_at:
            raise InputError("no more")
        assert address % 4096 == 0
        assert address not in self.pinned
        self.pinned[address] = size_bytes

    def unregister(self, address: int) -> None:
        del self.pinned[address]


def roomy() -> Free:
    return Free(1 << 50, "a test")


def test_it_is_pinned_in_pieces_that_no_page_crosses_and_says_how_far_it_is():
    registrar, heard = Registrar(), []
    memory = PinnedMemory(
        10 * MIB,
        registrar,
        page_bytes=3 * 4096,
        chunk_bytes=4 * MIB,
        progress=lambda done, total: heard.append((done, total)),
        free=roomy,
    )
    assert memory.chunk_bytes % (3 * 4096) == 0
    assert 0 < memory.chunk_bytes <= 4 * MIB
    assert sum(registrar.pinned.values()) == memory.pinned_bytes == 10 * MIB
    starts = sorted(address - memory.address for address in registrar.pinned)
    assert starts == [number * memory.chunk_bytes for number in range(len(starts))]
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert heard[-1] == (10 * MIB, 10 * MIB)
    assert len(heard) == len(starts) > 1
    memory.close()
    assert registrar.pinned == {}


def test_a_page_that_is_no_multiple_of_4096_still_lies_in_one_piece():
    memory = PinnedMemory(4 * MIB, Registrar(), page_bytes=70272, chunk_bytes=1, free=roomy)
    assert memory.chunk_bytes % 4096 == memory.chunk_bytes % 70272 == 0


def test_lazy_memory_is_pinned_where_it_is_used_and_once():
    registrar = Registrar()
    memory = PinnedMemory(8 * MIB, registrar, chunk_bytes=MIB, register="lazy", free=roomy)
    assert registrar.pinned == {}
    assert memory.pin(3 * MIB - 1, 2) > 0
    assert sorted(address - memory.address for address in registrar.pinned) == [2 * MIB, 3 * MIB]
    assert memory.pin(2 * MIB, 2 * MIB) == 0
    assert memory.pinned_bytes == 2 * MIB


def test_a_limit_is_kept():
    with pytest.raises(InputError, match=r"8.00 GiB were asked for, the limit is 4.00 GiB"):
        PinnedMemory(8 << 30, Registrar(), limit_bytes=4 << 30)


def test_a_refusal_says_what_was_asked_and_what_is_free_and_gives_everything_back():
    registrar = Registrar()
    frees = iter([Free(1 << 40, "MemAvailable")] * 2 + [Free(1040 * MIB, "MemAvailable")] * 99)
    with pytest.raises(InputError) as refusal:
        PinnedMemory(
            64 * MIB,
            registrar,
            chunk_bytes=32 * MIB - 4096,
            patience_s=0.0,
            free=lambda: next(frees),
            reserve_bytes=1040 * MIB,
        )
    text = str(refusal.value)
    assert "0.06 GiB were asked for and 0.06 GiB were taken" in text
    assert "1.02 GiB are free (MemAvailable)" in text
    assert registrar.pinned == {}


def test_a_driver_that_refuses_gets_its_earlier_pieces_back():
    registrar = Registrar(refuse_at=2)
    with pytest.raises(InputError, match="no more"):
        PinnedMemory(4 * MIB, registrar, chunk_bytes=MIB, free=roomy)
    assert registrar.pinned == {}


def test_memory_that_is_dropped_without_a_word_is_unpinned():
    registrar = Registrar()
    memory = PinnedMemory(4 * MIB, registrar, chunk_bytes=MIB, free=roomy)
    assert len(registrar.pinned) == 4
    del memory
    assert registrar.pinned == {}


def test_memory_that_appears_while_it_is_waited_for_is_used():
    asked = []

    def growing() -> Free:
        asked.append(1)
        return Free((len(asked)) * (1 << 30), "MemAvailable")

    memory = PinnedMemory(4 * MIB, Registrar(), patience_s=30.0, free=growing)
    assert memory.pinned_bytes == 4 * MIB
    assert len(asked) > 1


def test_without_a_gpu_it_is_plain_memory_that_can_be_written():
    memory = PinnedMemory(MIB)
    assert memory.address % 4096 == 0
    memory.view[5] = 9
    assert bytes(memory.view[4:7]) == b"\0\x09\0"
    memory.close()


def test_an_impossible_size_is_refused_and_not_tried():
    with pytest.raises(InputError, match="were asked for"):
        PinnedMemory(1 << 62, patience_s=0.0)


def write(root, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_what_is_free_is_what_the_kernel_and_every_group_above_leave(tmp_path):
    root = str(tmp_path)
    write(tmp_path, "proc/meminfo", "MemTotal: 999 kB\nMemAvailable:   2048 kB\n")
    assert free_memory(root) == Free(2 * MIB, "MemAvailable")
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path, "sys/fs/cgroup/a/b/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/a/b/memory.current", "5\n")
    assert free_memory(root).source == "MemAvailable"
    write(tmp_path, "sys/fs/cgroup/a/memory.max", "5000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.current", "4500\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.stat", "active_file 7\ninactive_file 100\n")
    assert free_memory(root).size_bytes == 600
    assert "sys/fs/cgroup/a" in free_memory(root).source


def test_the_older_kind_of_group_is_understood(tmp_path):
    write(tmp_path, "proc/meminfo", "MemAvailable:   2048 kB\n")
    write(tmp_path, "proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n")
    folder = "sys/fs/cgroup/memory/x"
    write(tmp_path, f"{folder}/memory.limit_in_bytes", "1000\n")
    write(tmp_path, f"{folder}/memory.usage_in_bytes", "900\n")
    write(tmp_path, f"{folder}/memory.stat", "total_inactive_file 50\n")
    assert free_memory(str(tmp_path)).size_bytes == 150


def test_this_machine_has_some_memory_free():
    free = free_memory()
    assert 0 < free.size_bytes < 1 << 50
    assert free.source != "unknown"


def test_pinned_memory_needs_no_torch():
    code = "import sys, hw.pinned, hw.transfers.driver; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == 0
