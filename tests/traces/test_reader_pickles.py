"""A pickle is read as data: what it names is never imported, and nothing of it is called."""

from __future__ import annotations

import array
import collections
import copyreg
import pickle
import pickletools
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.pickles import Made, Named, Pairs, read_pickle

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


@dataclass
class Request:
    rid: str
    input_ids: list[int]
    more: dict[str, Any] = field(default_factory=dict)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a, self.b = 1, "x"


def plain(value: Any) -> Any:
    """What was read, with dicts as dicts again."""
    if isinstance(value, Pairs):
        return {plain(key): plain(each) for key, each in value}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return value


@given(PLAIN, st.integers(3, 5))
def test_plain_values_are_read_as_pickle_itself_reads_them(value: Any, protocol: int) -> None:
    assert plain(read_pickle(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize("protocol", range(6))
def test_values_of_every_protocol_are_read(protocol: int) -> None:
    value = {
        "ints": [0, 255, 256, 65535, 65536, -1, 1 << 40, -(1 << 90), True, False],
        "texts": ["", "h\u00e9\n\\d", "x" * 300],
        "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "floats": [1.5, -1e300],
    }
    value["again"] = value["texts"]
    assert plain(read_pickle(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize("protocol", range(6))
def test_objects_are_their_fields(protocol: int) -> None:
    read = read_pickle(pickle.dumps([Request("a", [1, 70000], {"k": 1})] * 2, protocol))
    assert read[0] is read[1]
    fields = read[0].fields()
    assert (fields["rid"], fields["input_ids"], fields["more"].get("k")) == ("a", [1, 70000], 1)


def test_containers_of_libraries_are_records_of_what_was_put_in() -> None:
    ordered, queue, ids, some = read_pickle(
        pickle.dumps(
            [collections.OrderedDict(a=1), collections.deque([1, 2]), array.array("q", [5]), {7}]
        )
    )
    assert (ordered.of, ordered.pairs) == (Named("collections", "OrderedDict"), [("a", 1)])
    assert queue.items == [1, 2]
    assert ids.of == Named("array", "_array_reconstructor")
    assert some == [7]
    assert read_pickle(pickle.dumps(Slotted(), 2)).fields() == {"a": 1, "b": "x"}


# --- hostile files. Each would create the file `evidence` if it were unpickled.


def hostile_pickles(evidence: Path) -> dict[str, bytes]:
    command = f"touch {evidence}"
    text = command.encode()
    short = b"\x8c" + bytes([len(text)]) + text
    system = b"cos\nsystem\n"

    class Runs:
        def __reduce__(self) -> Any:
            import os

            return os.system, (command,)

    class RunsAsState:
        def __reduce__(self) -> Any:
            return Request, ("a", []), {"rid": Runs()}

    found = {f"reduce, protocol {n}": pickle.dumps(Runs(), n) for n in range(6)}
    found["nested"] = pickle.dumps({"requests": [(1, [Runs(), {"x": Runs()}])]}, 4)
    found["as a state"] = pickle.dumps(RunsAsState(), 4)
    found["from the memo"] = b"\x80\x02" + system + b"q\x000h\x00(" + short + b"tR."
    found["stack global"] = b"\x80\x04\x8c\x02os\x8c\x06system\x93" + short + b"\x85R."
    found["builtins"] = (
        b"\x80\x02c__builtin__\neval\n" + b"X" + struct.pack("<I", len(EVAL % text)) + EVAL % text
    ) + b"\x85R."
    found["inst"] = b"(" + b"S'" + text + b"'\nios\nsystem\n."
    found["obj"] = b"(" + system + short + b"o."
    found["newobj"] = b"\x80\x02" + system + short + b"\x85\x81."
    found["newobj with keywords"] = b"\x80\x04" + system + b")}\x8c\x07command" + short + b"s\x92."
    # BUILD gives an object a state, or calls its __setstate__.
    found["build"] = (
        b"\x80\x02c"
        + __name__.encode()
        + b"\nRequest\n)\x81}X\x0c\x00\x00\x00__setstate__"
        + system
        + b"sb"
        + short
        + b"b."
    )
    found["append"] = b"\x80\x02" + system + b")R(" + short + b"e."
    return found


EVAL = b"__import__('os').system('%b')"
KINDS = sorted(hostile_pickles(Path("x")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_pickle_does_what_it_says_when_unpickled_and_nothing_here(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = tmp_path / "evidence"
    data = hostile_pickles(evidence)[kind]
    calls: list[str] = []
    sys_modules = set(sys.modules)
    with monkeypatch.context() as patch:
        # Whatever would look a name up by pickle's own means fails the test.
        patch.setattr(pickle, "loads", lambda *_: calls.append("loads"))
        patch.setattr("os.system", lambda *_: calls.append("system"))
        read_pickle(data)
    assert not evidence.exists()
    assert calls == []
    assert set(sys.modules) == sys_modules


@pytest.mark.parametrize("kind", [each for each in KINDS if each.startswith("reduce")])
def test_these_pickles_are_really_hostile(tmp_path: Path, kind: str) -> None:
    evidence = tmp_path / "evidence"
    pickle.loads(hostile_pickles(evidence)[kind])  # the very thing that is never done
    assert evidence.exists()


def test_modules_that_a_pickle_names_are_not_imported() -> None:
    name = "wave"  # of the standard library; nothing here imports it
    sys.modules.pop(name, None)
    made = read_pickle(b"\x80\x02c" + name.encode() + b"\nopen\n)R.")
    assert (made.of, made.arguments) == (Named(name, "open"), ())
    assert name not in sys.modules


@pytest.mark.parametrize(
    "data",
    [b"\x80\x02\x82\x07.", b"\x83\x07\x00.", b"\x84\x07\x00\x00\x00.", b"Pid\n.", b"NQ.", b"\x97."],
    ids=["ext1", "ext2", "ext4", "persistent id", "binary persistent id", "buffer"],
)
def test_what_lies_outside_of_the_file_is_refused(data: bytes) -> None:
    copyreg.add_extension("os", "system", 7)
    try:
        with pytest.raises(ValueError, match="refers to what is not in the file"):
            read_pickle(data)
    finally:
        copyreg.remove_extension("os", "system", 7)


MALFORMED = {
    b"": "cut off",
    b"\x80\x04": "cut off",
    b".": "malformed",
    b"]": "cut off",
    b"e.": "a mark is missing",
    b"(e.": "malformed",
    b"(K\x01K\x02d": "cut off",
    b"(K\x01d.": "a key has no value",
    b"}K\x01a.": "appended to what is no list",
    b"]K\x01K\x02s.": "stored in what is no dict",
    b"]Nb.": "a state is given to what is no object",
    b"h\x07.": "malformed",
    b"\xff.": "byte 0 is no opcode",
    b"(\x87.": "values are missing",
    b"\x80\x04X\xff\xff\xff\x7fab": "is malformed: expected 2147483647 bytes",
    b"\x8d" + b"\xff" * 8 + b"ab": "is malformed: .* byte count",
    b"I" + b"9" * 5000 + b"\n.": "Exceeds the limit",
    b"J\x01": "not enough data",
}


@pytest.mark.parametrize("data", MALFORMED)
def test_malformed_data_is_one_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=MALFORMED[data]):
        read_pickle(data)


def test_a_huge_memo_index_takes_no_memory() -> None:
    assert read_pickle(b"Nr\xff\xff\xff\xff.") is None


def test_a_deep_nest_is_read_and_let_go() -> None:
    value = read_pickle(b"]" * 200_000 + b"a" * 199_999 + b".")
    assert isinstance(value, list)
    del value


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_one_error(data: bytes) -> None:
    try:
        value = read_pickle(data + b".")
    except ValueError:
        value = None
    assert not callable(value)


@given(st.lists(st.sampled_from(sorted(each.code for each in pickletools.opcodes)), max_size=20))
def test_any_opcodes_are_a_value_or_one_error(codes: list[str]) -> None:
    data = b"".join(code.encode("latin-1") + b"\x01" * (code in "KhqU\x80\x8c") for code in codes)
    try:
        value = read_pickle(b"]}(NK\x01cos\nsystem\n)" + data + b".")
    except ValueError:
        value = None
    assert value is None or isinstance(
        value, bool | int | float | list | tuple | dict | Named | Made | str | bytes
    )
