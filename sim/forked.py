"""Worker processes that are forked off this one, where nothing forbids it.

A fork is ready within milliseconds and has imported all that this process has; a clean interpreter
takes half a second of a core to get there. But the fork of a process with threads may hang, on a
lock that another thread held. So the kernel is asked first how many there are, and where there is
more than one (a progress bar, a notebook, numpy's own), or no way to ask, nothing is forked: others
have to do the work (`sim.sweep_pool`).

    this process    (function, argument) -->    worker     one at a time, pickled
                    <-- (result, error)                    a pipe each way

Workers stay until `end`, and end by themselves when this process does. They leave Ctrl-C to it.
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import IO, Any, NamedTuple, NoReturn

_THREADS = "/proc/self/task"


class _Worker(NamedTuple):
    pid: int
    to: IO[bytes]
    answers: IO[bytes]

    def hand(self, function: Callable[[Any], Any], argument: Any) -> bool:
        """Give it something to do. False if it is no longer there."""
        try:
            pickle.dump((function, argument), self.to)
            self.to.flush()
        except BrokenPipeError:
            return False
        return True

    def answer(self) -> tuple[Any, BaseException | None] | None:
        """What came of it; None if the worker died over it. Waits."""
        try:
            return pickle.load(self.answers)
        except (EOFError, pickle.UnpicklingError):
            return None

    def ends(self) -> tuple[int, int]:
        """This process's ends of its pipes."""
        return self.to.fileno(), self.answers.fileno()

    def end(self) -> None:
        """Kill it and wait for its end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        for each in (self.to, self.answers):
            with suppress(BrokenPipeError):
                each.close()


def may_fork() -> bool:
    """Whether this process has one thread, and so may be forked."""
    try:
        return sys.platform == "linux" and len(os.listdir(_THREADS)) == 1
    except OSError:
        return False


class ForkedWorkers:
    """Some workers, or none yet."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []

    def start(self, count: int) -> bool:
        """Have `count` workers, those that are there included. False if that may not be."""
        while len(self._workers) < count:
            if not may_fork():
                return False
            self._workers.append(self._forked())
        return True

    def run(
        self, function: Callable[[Any], Any], arguments: Iterable[Any], count: int
    ) -> Generator[Any]:
        """Results of `function` for each argument, as they come, on the first `count` workers.

        Once a worker was killed nothing new is begun: what the others are at is the last to be
        yielded, and the argument that it had is missing, as are those that come after. Raises what
        `function` raises. Workers that have not answered when this is closed are ended.
        """
        left = iter(arguments)
        busy: dict[int, _Worker] = {}
        try:
            with selectors.DefaultSelector() as selector:
                for worker in self._workers[:count]:
                    self._hand(worker, function, left, busy)
                for worker in busy.values():
                    selector.register(worker.answers, selectors.EVENT_READ, worker)
                while busy:
                    for key, _ in selector.select():
                        worker = key.data
                        answer = worker.answer()
                        if answer is None:
                            left = iter(())
                            selector.unregister(worker.answers)
                            self._lose(busy.pop(worker.pid))
                            continue
                        result, error = answer
                        del busy[worker.pid]
                        if error is not None:
                            raise error
                        if not self._hand(worker, function, left, busy):
                            selector.unregister(worker.answers)
                        yield result
        finally:
            for worker in busy.values():
                self._lose(worker)

    def end(self) -> None:
        """End all workers."""
        for worker in list(self._workers):
            self._lose(worker)

    def _hand(
        self,
        worker: _Worker,
        function: Callable[[Any], Any],
        left: Iterator[Any],
        busy: dict[int, _Worker],
    ) -> bool:
        """Hand it the next argument, if there is one. A dead one is found by its missing answer."""
        for argument in left:
            busy[worker.pid] = worker  # also where Ctrl-C leaves half of it in the pipe
            worker.hand(function, argument)
            return True
        return False

    def _lose(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.end()

    def _forked(self) -> _Worker:
        jobs, to = os.pipe()
        answers, results = os.pipe()
        kept = [to, answers, *(end for each in self._workers for end in each.ends())]
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # closed by who started this process
                stream.flush()  # or the child would have it, too
        # Until the child ignores it, Ctrl-C waits.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            pid = os.fork()
            if not pid:
                _work(jobs, results, kept, mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(jobs)
            os.close(results)
        return _Worker(pid, open(to, "wb"), open(answers, "rb"))


def _work(jobs: int, results: int, others: list[int], mask: set[int | signal.Signals]) -> NoReturn:
    """The life of a worker, from the fork to its end; `others` are ends of pipes of the parent."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each in others:
            os.close(each)
        # What was there before is not looked through at each collection.
        gc.disable()
        gc.freeze()
        with open(jobs, "rb") as incoming, open(results, "wb") as outgoing:
            while True:
                try:
                    function, argument = pickle.load(incoming)
                except EOFError:
                    break
                outgoing.write(_attempt(function, argument))
                outgoing.flush()
        code = 0
    finally:
        os._exit(code)


def _attempt(function: Callable[[Any], Any], argument: Any) -> bytes:
    try:
        return pickle.dumps((function(argument), None))
    except BaseException as error:
        error.add_note(traceback.format_exc())
        return _told(error)


def _told(error: BaseException) -> bytes:
    """`error` on its way; in words where it cannot be taken apart, or not be put together."""
    try:
        told = pickle.dumps((None, error))
        pickle.loads(told)
    except Exception:
        words = RuntimeError(f"{type(error).__name__}: {error}")
        words.__notes__ = error.__notes__
        told = pickle.dumps((None, words))
    return told
