"""What a pickle holds, as plain values and inert records. Nothing of it is ever imported or called.

Unpickling runs code of the file's choice. This does not unpickle: it reads the opcodes and builds
only what has no behaviour. A class or a function is a `Named`: its module and name, as text. What
calling one would have made is a `Made`: what was to be called, its arguments, its state, its
items. No opcode can do more, so there is no list of forbidden names that could have a hole. Memory
grows with the file alone.

Refused, as `ValueError`: opcodes for what lies outside of the file (extension registry, persistent
ids, buffers), malformed or cut-off data, a stack that does not suit the opcode.
"""

from __future__ import annotations

import io
import pickletools
import re
import struct
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

# Runs of small integers: token ids, of which a file has millions. One byte, two, four, each behind
# its opcode.
_INTEGERS = re.compile(rb"(?:K.|M..|J.{4})++", re.DOTALL)
_TWO_BYTES, _FOUR_BYTES = ord("M"), ord("J")
_FOUR = struct.Struct("<i")
# Opcodes whose value is the argument that stands in the file.
_VALUE = re.compile("(SHORT_)?(BIN)?(INT[12]?|LONG[14]?|FLOAT|STRING|UNICODE8?|BYTES8?)|BYTEARRAY8")


class Pairs(list[tuple[Any, Any]]):
    """A dict's pairs of key and value; keys may be of any kind, so they are not hashed."""

    def get(self, key: str) -> Any:
        """The last value under `key`; None if there is none."""
        return next((value for each, value in reversed(self) if each == key), None)


class Named(NamedTuple):
    """A class or function, which stays a name."""

    module: Any
    name: Any


class Made:
    """What would have been made by calling `of` with `arguments`; it only holds what it was given.

    `state` is what the object was to be set up with, `items` what was to be appended to it, `pairs`
    what was to be stored in it under keys.
    """

    __slots__ = ("arguments", "items", "of", "pairs", "state")

    def __init__(self, of: Any, arguments: Any, state: Any = None) -> None:
        self.of = of
        self.arguments = arguments
        self.state = state
        self.items: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []

    def fields(self) -> dict[str, Any]:
        """The attributes that the object was to get, by name."""
        found: dict[str, Any] = {}
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        for state in states:
            if isinstance(state, Pairs):
                found.update((key, value) for key, value in state if isinstance(key, str))
        return found


def read_pickle(data: bytes) -> Any:
    """The value that `data` describes. Dicts are `Pairs`, sets are lists, objects `Made`."""
    try:
        with warnings.catch_warnings():
            # Old text strings may hold escapes that Python warns of.
            warnings.simplefilter("ignore")
            return _Machine(data).run()
    except (IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"is malformed: {error or type(error).__name__}") from None


class _Machine:
    """The pickle machine: a stack, a memo, one opcode after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        # Values since the last mark, and, for each mark, those before it.
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, file = self._data, io.BytesIO(self._data)
        at = 0
        while at < len(data):
            if integers := _INTEGERS.match(data, at):
                self._push_integers(at, integers.end())
                at = integers.end()
                continue
            code = data[at]
            if code == ord("."):
                return self._stack.pop()
            step, read_argument = _STEPS.get(code, (None, None))
            if step is None:
                raise ValueError(f"is malformed: byte {at} is no opcode")
            at += 1
            argument = None
            if read_argument is not None:
                file.seek(at)
                try:
                    argument = read_argument(file)
                except ValueError as error:
                    raise ValueError(f"is malformed: {' '.join(str(error).split())}") from None
                at = file.tell()
            step(self, argument)
        raise ValueError("is cut off: the file ends before the pickle does")

    def _push_integers(self, at: int, end: int) -> None:
        data, push = self._data, self._stack.append
        while at < end:
            opcode = data[at]
            if opcode == _TWO_BYTES:
                push(data[at + 1] | data[at + 2] << 8)
                at += 3
            elif opcode == _FOUR_BYTES:
                push(_FOUR.unpack_from(data, at + 1)[0])
                at += 5
            else:
                push(data[at + 1])
                at += 2

    # Values, marks and the memo.

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def pop_mark(self, _: Any = None) -> list[Any]:
        """Take what was pushed since the last mark, and the mark."""
        if not self._below:
            raise ValueError("is malformed: a mark is missing")
        values, self._stack = self._stack, self._below.pop()
        return values

    def pop(self, _: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self.pop_mark()

    def duplicate(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def put(self, number: Any) -> None:
        self._memo[number] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, number: Any) -> None:
        self._stack.append(self._memo[number])

    # Tuples, lists, dicts and sets.

    def make_list(self, _: Any) -> None:
        values = self.pop_mark()
        self._stack.append(values)

    def make_dict(self, _: Any) -> None:
        values = self.pop_mark()
        self._stack.append(Pairs(_paired(values)))

    def make_tuple(self, _: Any) -> None:
        values = self.pop_mark()
        self._stack.append(tuple(values))

    def tuple_of(self, count: int) -> None:
        values = tuple(self._stack[-count:])
        if len(values) < count:
            raise ValueError("is malformed: values are missing")
        self._stack[-count:] = [values]

    def add(self, _: Any) -> None:
        value = self._stack.pop()
        _items_of(self._stack[-1]).append(value)

    def add_all(self, _: Any) -> None:
        values = self.pop_mark()
        _items_of(self._stack[-1]).extend(values)

    def store(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _pairs_of(self._stack[-1]).append((key, value))

    def store_all(self, _: Any) -> None:
        values = self.pop_mark()
        _pairs_of(self._stack[-1]).extend(_paired(values))

    # What would have been classes and objects.

    def name(self, module_and_name: Any) -> None:
        self._stack.append(Named(*module_and_name.split(" ", 1)))

    def name_on_stack(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(Named(module, name))

    def call(self, _: Any) -> None:
        arguments, of = self._stack.pop(), self._stack.pop()
        self._stack.append(Made(of, arguments))

    def call_with_keywords(self, _: Any) -> None:
        keywords, arguments, of = (self._stack.pop() for _ in range(3))
        self._stack.append(Made(of, arguments, keywords))

    def call_named(self, module_and_name: Any) -> None:
        arguments = tuple(self.pop_mark())
        self._stack.append(Made(Named(*module_and_name.split(" ", 1)), arguments))

    def call_first(self, _: Any) -> None:
        of, *arguments = self.pop_mark() or [None]
        self._stack.append(Made(of, tuple(arguments)))

    def build(self, _: Any) -> None:
        state = self._stack.pop()
        if not isinstance(made := self._stack[-1], Made):
            raise ValueError("is malformed: a state is given to what is no object")
        made.state = state


_Step = Callable[[_Machine, Any], Any]

_STEP_OF: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, argument: None),
    "NONE": lambda machine, argument: machine.push(None),
    "NEWTRUE": lambda machine, argument: machine.push(True),
    "NEWFALSE": lambda machine, argument: machine.push(False),
    "EMPTY_TUPLE": lambda machine, argument: machine.push(()),
    "EMPTY_LIST": lambda machine, argument: machine.push([]),
    "EMPTY_SET": lambda machine, argument: machine.push([]),
    "EMPTY_DICT": lambda machine, argument: machine.push(Pairs()),
    "MARK": _Machine.mark,
    "POP_MARK": _Machine.pop_mark,
    "POP": _Machine.pop,
    "DUP": _Machine.duplicate,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "MEMOIZE": _Machine.memoize,
    **dict.fromkeys(("LIST", "FROZENSET"), _Machine.make_list),
    "DICT": _Machine.make_dict,
    "TUPLE": _Machine.make_tuple,
    "TUPLE1": lambda machine, argument: machine.tuple_of(1),
    "TUPLE2": lambda machine, argument: machine.tuple_of(2),
    "TUPLE3": lambda machine, argument: machine.tuple_of(3),
    "APPEND": _Machine.add,
    **dict.fromkeys(("APPENDS", "ADDITEMS"), _Machine.add_all),
    "SETITEM": _Machine.store,
    "SETITEMS": _Machine.store_all,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name_on_stack,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.call),
    "NEWOBJ_EX": _Machine.call_with_keywords,
    "INST": _Machine.call_named,
    "OBJ": _Machine.call_first,
    "BUILD": _Machine.build,
}


def _step_of(name: str) -> _Step:
    if name in _STEP_OF:
        return _STEP_OF[name]
    if _VALUE.fullmatch(name):
        return _Machine.push

    def refuse(machine: _Machine, argument: Any) -> None:
        raise ValueError(f"refers to what is not in the file (opcode {name})")

    return refuse


# By opcode: what it does, and what reads its argument.
_STEPS: dict[int, tuple[_Step, Any]] = {
    ord(each.code): (_step_of(each.name), each.arg.reader if each.arg is not None else None)
    for each in pickletools.opcodes
}


def _items_of(value: Any) -> list[Any]:
    if isinstance(value, Made):
        return value.items
    if isinstance(value, list) and not isinstance(value, Pairs):
        return value
    raise ValueError("is malformed: something is appended to what is no list")


def _pairs_of(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Made):
        return value.pairs
    if isinstance(value, Pairs):
        return value
    raise ValueError("is malformed: something is stored in what is no dict")


def _paired(values: list[Any]) -> list[tuple[Any, Any]]:
    if len(values) % 2:
        raise ValueError("is malformed: a key has no value")
    return list(zip(values[::2], values[1::2], strict=True))
