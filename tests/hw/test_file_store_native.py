"""The transport in C keeps the store's contract, faults and bounds of threads included."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest
import test_file_store_contract as contract
from file_store_helpers import ROOT, content, fill, runs
from native_calls import compile_to, compiled_loop, compiled_plan, loop_with, replace_calls

from hicache.errors import TransferError
from hw.storage import native, plan_native
from hw.storage.file_store import FileStore
from hw.storage.host import HostBuffer
from hw.transfers import front_native

PAGE = contract.ALIGNED


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Where the libraries are made anew."""
    return tmp_path_factory.mktemp("native")


@pytest.fixture
def compiled(made) -> ctypes.CDLL:
    """The loop."""
    return compiled_loop(made)


@pytest.fixture
def use_it(made, monkeypatch) -> None:
    """File stores that are opened from now on take loop and plan."""
    monkeypatch.setattr("hw.storage.file_store.library", lambda: compiled_loop(made))
    monkeypatch.setattr(plan_native, "library", lambda: compiled_plan(made))


def tasks() -> int:
    """Threads of this process, those of C included."""
    return len(os.listdir("/proc/self/task"))


def settled(most: int) -> int:
    """Threads, once there are `most` or a second has gone by: one that was joined may be listed a
    moment longer.
    """
    for _ in range(100):
        if tasks() <= most:
            break
        time.sleep(0.01)
    return tasks()


@pytest.fixture
def instead(monkeypatch):
    """`instead(act)`: `act` takes the place of every call."""
    return lambda act: replace_calls(monkeypatch, dict.fromkeys(("reading", "writing"), act))


class Faults:
    """Faults below the C, for the contract."""

    BIT = 0

    @pytest.fixture(autouse=True)
    def in_c(self, use_it) -> None:
        pass

    @pytest.fixture
    def shorten(self, instead):
        def start(blocks: int):
            most = blocks * 4096 if self.BIT else blocks * 1000 + 24
            cut: list[int] = []

            def act(real, fd, address, size, position) -> int:
                if size <= most + self.BIT:
                    return real(fd, address, size, position)
                cut.append(size)
                return real(fd, address, most, position) + self.BIT

            instead(act)
            return lambda: cut

        return start

    @pytest.fixture
    def break_one(self, instead):
        left, lock = [-1], threading.Lock()

        def act(real, fd, address, size, position) -> int:
            with lock:
                left[0] -= 1
                broken = left[0] == -1
            return -5 if broken else real(fd, address, size, position)

        instead(act)

        def start(nth: int) -> None:
            left[0] = nth

        return start

    def test_it_says_what_it_is(self, tmp_path):
        store = self.open(tmp_path, 2, HostBuffer(2, PAGE))  # type: ignore[attr-defined]
        writers = 4 if self.BIT else 1
        assert f"compiled: 4 threads for reading, {writers} for writing" in store.describe()
        store.close()


class TestNative(Faults, contract.StoreContract):
    backend = "pread"


class TestNativePlannedInPython(TestNative):
    @pytest.fixture(autouse=True)
    def in_python(self, in_c, monkeypatch) -> None:
        monkeypatch.setattr(plan_native, "library", lambda: None)


class TestNativeDirect(Faults, contract.TestDirect):
    """With a whole block and a bit, as at the end of a file: the bit is asked for again."""

    BIT = 100


def open_store(folder: Path, pages: int, workers: int = 4) -> tuple[FileStore, HostBuffer]:
    host = HostBuffer(2 * pages, PAGE)
    fill(host)
    return FileStore(folder, pages, PAGE, host, workers=workers), host


def test_an_interrupted_call_is_made_again(tmp_path, use_it, instead):
    store, host = open_store(tmp_path, 8)
    refused: list[int] = []

    def act(real, fd, address, size, position) -> int:
        if position not in refused:
            refused.append(position)
            return -4
        return real(fd, address, size, position)

    instead(act)
    pages = content(host)[:8]
    places = runs(range(0, 16, 2))
    store.write(((0, 8),), ((0, 8),))
    store.read(runs(range(8)), places)
    assert content(host)[0:16:2] == pages
    assert len(refused) >= 8
    store.close()


def test_after_a_failure_no_further_request_begins_and_the_first_one_is_raised(
    tmp_path, use_it, instead
):
    store, _ = open_store(tmp_path, 200)
    store.write(((0, 200),), ((0, 200),))
    begun, under_way = [], [0]

    def act(real, fd, address, size, position) -> int:
        begun.append(position)
        under_way[0] += 1
        time.sleep(0.002 if position else 0.02)
        under_way[0] -= 1
        return -5 if position == 10 * PAGE else real(fd, address, size, position)

    instead(act)
    order = [0, 10, *[page for page in range(2, 200, 2) if page != 10]]
    with pytest.raises(TransferError, match=r"reading slot 10 .*\(EIO\)"):
        store.read(runs(order), runs(range(200, 400, 2))[: len(order)])
    assert under_way == [0], "a request is still under way"
    assert len(begun) < 20
    store.close()


def test_of_several_failures_the_first_is_raised(tmp_path, use_it, instead):
    store, _ = open_store(tmp_path, 8)
    together = threading.Barrier(4)

    def act(real, fd, address, size, position) -> int:
        together.wait(20)
        if position:
            time.sleep(0.05)
        return -28 if position else -5

    instead(act)
    with pytest.raises(TransferError, match=r"reading slot 0 .*\(EIO\)"):
        store.read(runs(range(0, 8, 2)), runs(range(0, 8, 2)))
    store.close()


@pytest.mark.parametrize("callers", [1, 3])
def test_threads_are_bounded_stay_and_end_when_the_store_is_closed(
    tmp_path, use_it, instead, callers
):
    store, _ = open_store(tmp_path, 60, workers=4)
    store.write(((0, 60),), ((0, 60),))
    lock, inside, most, who = threading.Lock(), [0], [0], set()

    def act(real, fd, address, size, position) -> int:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            who.add(threading.get_native_id())
        time.sleep(0.002)
        with lock:
            inside[0] -= 1
        return real(fd, address, size, position)

    instead(act)
    before = tasks()

    def read() -> None:
        for _ in range(3):
            store.read(runs(range(0, 60, 2)), runs(range(60, 120, 2)))

    threads = [threading.Thread(target=read) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 2 <= most[0] <= 3 + callers
    assert len(who) > callers
    assert before < settled(before + 3) <= before + 3
    helpers, who = who & set(map(int, os.listdir("/proc/self/task"))), set()
    read()
    assert who <= helpers | {threading.get_native_id()}, "a thread more"
    store.close()
    assert settled(before) == before


def test_threads_that_wait_for_an_operation_take_no_time(tmp_path, use_it):
    store, _ = open_store(tmp_path, 40)
    before = tasks()
    store.write(((0, 40),), ((0, 40),))
    store.read(runs(range(0, 40, 2)), runs(range(40, 80, 2)))
    assert tasks() > before
    begun_s = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begun_s < 0.1
    store.close()


def test_a_store_is_closed_once_its_operation_is_over(tmp_path, use_it, instead):
    store, host = open_store(tmp_path, 40)
    store.write(((0, 40),), ((0, 40),))
    pages, under_way, before = content(host), threading.Event(), tasks()

    def act(real, fd, address, size, position) -> int:
        under_way.set()
        time.sleep(0.01)
        return real(fd, address, size, position)

    instead(act)
    order = list(range(39, -1, -1))
    reader = threading.Thread(target=store.read, args=(runs(order), ((40, 40),)))
    reader.start()
    assert under_way.wait(20)
    store.close()
    assert content(host)[40:] == [pages[slot] for slot in order], "closed under the operation"
    reader.join()
    assert settled(before) == before


def test_threads_end_when_the_store_is_forgotten(tmp_path, use_it):
    gc.collect()  # what other tests have forgotten
    before = tasks()
    store, _ = open_store(tmp_path, 40)
    store.write(((0, 40),), ((0, 40),))
    store.read(runs(range(0, 40, 2)), runs(range(40, 80, 2)))
    assert tasks() > before
    del store  # nothing in it refers to it, so it goes at once
    assert settled(before) == before


def test_a_forked_process_has_threads_of_its_own_and_ends_only_those(tmp_path, made):
    done = in_another_process(
        tmp_path,
        made,
        """
        before = tasks()
        read()
        assert tasks() == before + 3
        child = os.fork()
        if not child:
            alone = tasks()
            read()
            assert tasks() == alone + 3
            store.close()
            assert tasks() == alone
            os._exit(7)
        read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        read()
        store.close()
        if not os.fork():
            store.close()
            os._exit(0)
        os.wait()
        """,
    )
    assert done.returncode == 0, done.stderr


def test_a_process_forked_beside_a_read_is_not_in_it(tmp_path, made):
    done = in_another_process(
        tmp_path,
        made,
        """
        read()
        pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
        native._Direction.calls["reading"] = pause
        threading.Thread(target=read, daemon=True).start()
        time.sleep(0.2)
        child = os.fork()
        if not child:
            native._Direction.calls["reading"] = slow
            read()
            store.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("end", ["", "raise SystemExit", "os._exit(0)"])
def test_a_process_ends_while_its_threads_sleep_or_hang_in_a_read(tmp_path, made, end):
    done = in_another_process(
        tmp_path,
        made,
        f"""
        read()
        pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
        native._Direction.calls["reading"] = pause
        threading.Thread(target=read, daemon=True).start()
        time.sleep(0.2)
        {end}
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def in_another_process(folder: Path, made: Path, act: str) -> subprocess.CompletedProcess[str]:
    """Run `act` where there are a `store`, `read` and `tasks`."""
    prelude = f"""
        import ctypes, os, sys, threading, time, warnings
        warnings.simplefilter("ignore")  # of Python's, who forks with threads
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(ROOT)!r}]
        from pathlib import Path
        from file_store_helpers import ROOT, content, fill, runs
        from hw.storage import file_store, native
        from hw.storage.host import HostBuffer
        library = native.open_library(native.library_path(Path({str(made)!r})))
        file_store.library = lambda: library
        host = HostBuffer(80, {PAGE})
        fill(host)
        store = file_store.FileStore(Path({str(folder)!r}), 40, {PAGE}, host, workers=4)
        store.write(((0, 40),), ((0, 40),))
        pages = content(host)[:40]
        calls = ctypes.CDLL({str(made / "slow.so")!r})
        slow = ctypes.cast(calls.slow, ctypes.c_void_p).value
        native._Direction.calls["reading"] = slow  # so that every thread has something to read

        def read():
            host.view(40, 40)[:] = bytes(40 * {PAGE})
            store.read(runs(range(39, -1, -1)), ((40, 40),))
            assert content(host)[40:] == pages[::-1]

        def tasks():
            time.sleep(0.05)
            return len(os.listdir("/proc/self/task"))
    """
    compiled_loop(made)
    source = made / "slow.c"
    source.write_text("""
        #include <unistd.h>
        ssize_t slow(int fd, void *memory, size_t size, off_t position) {
            usleep(2000);
            return pread(fd, memory, size, position);
        }
    """)
    command = ["cc", "-shared", "-fPIC", str(source), "-o", str(made / "slow.so")]
    subprocess.run(command, check=True)
    return subprocess.run(
        [sys.executable, "-c", dedent(prelude) + dedent(act)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_a_sanitizer_finds_nothing(tmp_path, sanitizer):
    program, driver = tmp_path / "driver", Path(__file__).with_name("loop_driver.c")
    command = ["cc", "-std=gnu11", "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread"]
    command += [f"-I{native.SOURCE.parent}", str(driver), "-o", str(program)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    if "-fsanitize" in made.stderr or "san" in made.stderr:
        pytest.skip(f"the C compiler has no sanitizer: {made.stderr[-200:]}")
    assert made.returncode == 0, made.stderr
    command = [str(program), str(tmp_path / "file"), "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer does not run on this kernel")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("refused", ["1", "asked > 1", "asked % 2", "asked % 3 == 0"])
def test_threads_that_cannot_be_started_are_done_without(tmp_path, monkeypatch, instead, refused):
    library = loop_with(tmp_path, f"if ({refused}) return EAGAIN;")
    monkeypatch.setattr("hw.storage.file_store.library", lambda: library)
    before = tasks()
    store, host = open_store(tmp_path, 200, workers=16)
    pages = content(host)
    store.write(((0, 200),), ((0, 200),))

    def act(real, fd, address, size, position) -> int:
        time.sleep(0.001)
        return real(fd, address, size, position)

    instead(act)
    order = random.Random(1).sample(range(200), 200)
    store.read(runs(order), runs(200 + page for page in order))
    assert content(host)[200:] == pages[:200]
    assert ctypes.c_int.in_dll(library, "asked").value >= 1
    assert settled(before + 15) <= before + 15
    for _ in range(20):  # one that was never started may be later
        store.read(runs(order[:32]), runs(range(200, 400, 2))[:32])
    never = {"1": 0, "asked > 1": 1}
    assert settled(before + 15) == before + never.get(refused, 15)
    store.close()
    assert settled(before) == before


def test_each_reading_thread_has_an_open_file_of_its_own(tmp_path, use_it, instead):
    store, _ = open_store(tmp_path, 40)
    assert "4 open files" in store.describe()
    used: dict[str, set[tuple[int, int]]] = {"reading": set(), "writing": set()}
    now = "writing"

    def act(real, fd, address, size, position) -> int:
        used[now].add((threading.get_native_id(), fd))
        time.sleep(0.005)
        return real(fd, address, size, position)

    instead(act)
    store.write(runs(range(0, 40, 2)), runs(range(0, 40, 2)))
    now = "reading"
    store.read(runs(range(0, 40, 2)), runs(range(40, 80, 2)))
    assert used["writing"] == {(threading.get_native_id(), store.file.fd)}
    assert (threading.get_native_id(), store.file.fd) in used["reading"]
    threads, files = (set(column) for column in zip(*used["reading"], strict=True))
    assert len(used["reading"]) == len(threads) == len(files) > 1
    assert files <= {store.file.fd, *store.file.more_fds}
    store.close()


def refuse(*arguments) -> int:
    raise PermissionError(13, "Permission denied")


def another(path, flags, *mode) -> int:
    return os.memfd_create("another")


@pytest.mark.parametrize("instead_of_open", [refuse, another])
def test_where_the_file_cannot_be_opened_again_all_threads_share_it(
    tmp_path, use_it, monkeypatch, instead_of_open
):
    real = os.open

    def opening(path, flags, *rest, **named) -> int:
        if str(path).startswith("/proc/self/fd/"):
            return instead_of_open(path, flags)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", opening)
    before = len(os.listdir("/proc/self/fd"))
    store, host = open_store(tmp_path, 40)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert "open files" not in store.describe()
    pages = content(host)
    store.write(((0, 40),), ((0, 40),))
    store.read(runs(range(39, -1, -1)), ((40, 40),))
    assert content(host)[40:] == pages[39::-1]
    store.close()


def test_no_more_than_half_of_the_descriptors_are_taken(tmp_path, use_it):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * used + 20, hard))
    try:
        store, _ = open_store(tmp_path, 4, workers=200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 0 < len(store.file.more_fds) <= used + 10
    store.close()


def test_a_store_that_is_forgotten_leaves_no_descriptor_either(tmp_path, use_it):
    gc.collect()  # what other tests have forgotten
    before = len(os.listdir("/proc/self/fd"))
    store, _ = open_store(tmp_path, 4)
    assert len(os.listdir("/proc/self/fd")) == before + 4
    del store
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_request_takes_no_thread(tmp_path, use_it, instead):
    store, _ = open_store(tmp_path, 4)
    who = []

    def act(real, fd, address, size, position) -> int:
        who.append(threading.get_native_id())
        return real(fd, address, size, position)

    instead(act)
    store.write(((0, 1),), ((2, 1),))
    store.read(((2, 1),), ((1, 1),))
    assert who == [threading.get_native_id()] * 2
    store.close()


def test_a_part_is_read_while_the_next_is_planned(tmp_path, use_it, instead):
    store, host = open_store(tmp_path, 16)
    store.write(((0, 16),), ((0, 16),))
    pages, read = content(host), threading.Event()

    def act(real, fd, address, size, position) -> int:
        read.set()
        return real(fd, address, size, position)

    instead(act)
    rows = [[slot * PAGE, (16 + slot) * PAGE, PAGE] for slot in range(16)]

    def parts() -> Iterator[np.ndarray]:
        yield np.array(rows[:4])
        assert read.wait(20), "nobody began with the first part"
        yield np.empty((0, 3), np.int64)
        yield np.array(rows[4:], order="F")

    assert store._transport is not None
    store._transport.read(parts())
    assert content(host)[16:] == pages[:16]
    store.close()


def test_a_part_that_cannot_be_planned_is_raised_when_nothing_is_under_way(
    tmp_path, use_it, instead
):
    store, _ = open_store(tmp_path, 16)
    store.write(((0, 16),), ((0, 16),))
    under_way, all_begun, begun = [0], [], threading.Event()

    def act(real, fd, address, size, position) -> int:
        under_way[0] += 1
        all_begun.append(position)
        begun.set()
        time.sleep(0.02)
        under_way[0] -= 1
        return real(fd, address, size, position)

    instead(act)

    def parts() -> Iterator[np.ndarray]:
        yield np.array([[slot * PAGE, (16 + slot) * PAGE, PAGE] for slot in range(16)])
        assert begun.wait(20)
        raise LookupError("no plan")

    assert store._transport is not None
    with pytest.raises(LookupError, match="no plan"):
        store._transport.read(parts())
    assert under_way == [0]
    assert len(all_begun) <= 8, "requests began after planning had failed"
    store.close()


def test_ctrl_c_behind_the_last_part_leaves_no_thread(tmp_path, use_it):
    before = tasks()
    store, _ = open_store(tmp_path, 16)
    store.write(((0, 16),), ((0, 16),))
    part = np.array([[slot * PAGE, (16 + slot) * PAGE, PAGE] for slot in range(16)])
    # The end of the parts comes with the signal, and no line of Python in between.
    parts = chain([part], filter(_thread.interrupt_main, [signal.SIGINT]))
    transport = store._transport
    assert isinstance(transport, native.NativeTransport)
    with pytest.raises(KeyboardInterrupt):
        transport.read(parts)
    store.read(((0, 16),), ((0, 16),))
    # Threads of an operation that was not finished would wait for it, and read what was planned.
    store.close()
    assert settled(before) == before


def test_ctrl_c_behind_the_begin_leaves_no_thread(tmp_path, use_it, monkeypatch):
    before = tasks()
    store, _ = open_store(tmp_path, 16)
    store.write(((0, 16),), ((0, 16),))
    store.read(runs(range(0, 16, 2)), runs(range(16, 32, 2)))
    transport = store._transport
    assert isinstance(transport, native.NativeTransport)
    direction = transport._directions[0]
    library = direction._library

    def begin(*arguments: int) -> int:
        library.begin(*arguments)
        raise KeyboardInterrupt

    interrupted = SimpleNamespace(begin=begin, feed=library.feed, finish=library.finish)
    monkeypatch.setattr(direction, "_library", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.read(((0, 16),), ((0, 16),))
    store.close()
    assert settled(before) == before


@pytest.mark.parametrize("end", ["", "raise SystemExit(7)"])
def test_who_closes_in_the_middle_of_its_own_read_is_not_left_without_a_crew(tmp_path, made, end):
    done = in_another_process(
        tmp_path,
        made,
        f"""
        import signal
        import numpy as np
        from hicache.errors import TransferError

        def close(*_):
            store.close()
            for _ in range(64):  # who else wants what was freed
                memory = ctypes.create_string_buffer(10_000)
                ctypes.memset(memory, 255, 10_000)
                kept.append(memory)
            {end}

        def parts():
            row = [[slot * {PAGE}, (40 + slot) * {PAGE}, {PAGE}] for slot in range(40)]
            yield np.array(row)
            signal.raise_signal(signal.SIGTERM)
            yield np.array(row)

        kept = []
        signal.signal(signal.SIGTERM, close)
        try:
            store._transport.read(parts())
        except TransferError:
            sys.exit(7)
        """,
    )
    assert done.returncode == 7, done.stderr
    assert done.stderr == ""


def test_thousands_of_small_pages_by_many_threads(tmp_path, use_it):
    page_bytes, slots = 512, 20_000
    host = HostBuffer(2 * slots, page_bytes)
    words = np.frombuffer(host.view(0, slots), np.int64).reshape(slots, -1)
    words[:] = np.arange(slots)[:, None]
    store = FileStore(tmp_path, slots, page_bytes, host, workers=16)
    seed = random.Random(5)
    for _ in range(3):
        order = seed.sample(range(slots), slots)
        store.write(((0, slots),), tuple((slot, 1) for slot in order))
        store.read(tuple((slot, 1) for slot in order), ((slots, slots),))
        assert host.view(slots, slots) == host.view(0, slots)
        host.view(slots, slots)[:] = bytes(slots * page_bytes)
    store.close()


def test_auto_is_pread_at_every_size_where_its_threads_are_compiled(tmp_path, use_it):
    for page_bytes in (4096, 2 << 20):
        host = HostBuffer(1, page_bytes)
        store = FileStore(tmp_path, 1, page_bytes, host, backend="auto", workers=2)
        assert store.backend == "pread"
        store.close()


def test_the_library_is_made_once_and_again_for_another_source(compiled, tmp_path, monkeypatch):
    folder = tmp_path / "a" / "b"
    assert "loop for L3 files: made" in compile_to(folder).stdout
    assert "up to date" in compile_to(folder).stdout
    modules = native, plan_native, front_native
    assert set(folder.iterdir()) == {module.library_path(folder) for module in modules}
    changed = tmp_path / "loop.c"
    changed.write_text(native.SOURCE.read_text() + "\n")
    monkeypatch.setattr(native, "SOURCE", changed)
    assert not native.library_path(folder).exists()


def test_without_a_compiler_that_works_one_line_says_so(tmp_path):
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'error: broken' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = compile_to(tmp_path / "made", CC=str(compiler))
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "No compiled loop for L3 files: the C compiler fails: error: broken. Small pages are read "
        "more slowly.",
        "No compiled plan for L3 files: the C compiler fails: error: broken. Reads of many small "
        "pages begin later.",
        "No compiled front of copies: the C compiler fails: error: broken. Small copies take "
        "longer.",
    ]
    assert list((tmp_path / "made").iterdir()) == []


def test_it_is_used_where_it_is_and_never_in_the_way(compiled, tmp_path, monkeypatch, capsys):
    path = tmp_path / "loop.so"
    monkeypatch.setattr(native, "library_path", lambda: path)
    monkeypatch.setenv("HICACHE_COMPILED", "1")
    asked = native.library.__wrapped__
    assert asked() is None
    path.write_bytes(b"no library")
    assert asked() is None
    assert capsys.readouterr().err.count("the compiled loop does not load") == 1
    path.write_bytes(Path(compiled._name).read_bytes())
    monkeypatch.setenv("HICACHE_COMPILED", "0")
    assert asked() is None
    monkeypatch.delenv("HICACHE_COMPILED")
    # A file that once failed to load may be remembered as such: another name is another file.
    fresh = path.rename(tmp_path / "fresh.so")
    monkeypatch.setattr(native, "library_path", lambda: fresh)
    assert asked() is not None
