"""Threads of C: how many there are and how long they stay; forks, exits and sanitizers."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest
from file_store_helpers import content, runs
from native_calls import loop_with
from native_stores import (
    PAGE,
    in_another_process,
    instead,
    made,
    open_store,
    settled,
    tasks,
    use_it,
)

from hw.storage import native

__all__ = ["instead", "made", "use_it"]


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
