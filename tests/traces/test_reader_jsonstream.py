"""Elements of a big array come out as they stand in the file, wherever it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.errors import InputError
from traces import jsonstream
from traces.jsonstream import array_elements, first_object
from traces.rows import BadRows

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[]{},:\n', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def cut(document: bytes, size: int) -> list[bytes]:
    return [document[at : at + size] for at in range(0, len(document), size)]


def elements(document: bytes, key: str | None = None, size: int = 7, **more: Any) -> list[Any]:
    return list(array_elements(cut(document, size), key, BadRows("FILE"), **more))


@given(st.lists(VALUES, max_size=5), st.integers(1, 40), st.sampled_from([None, 1]))
def test_the_elements_are_those_that_a_whole_decoder_finds(
    values: list[Any], size: int, indent: int | None
) -> None:
    document = json.dumps(values, indent=indent).encode()
    assert [json.loads(raw) for _, raw in elements(document, size=size)] == values


@given(st.dictionaries(st.sampled_from("abcd"), VALUES), st.integers(1, 40), st.integers(0, 4))
def test_the_array_under_a_key_is_streamed_and_the_other_fields_are_kept(
    others: dict[str, Any], size: int, place: int
) -> None:
    members = list(others.items())
    members.insert(place, ("requests", [{"t": 1}, "x", 3]))
    fields: dict[str, bytes] = {}
    document = json.dumps(dict(members), indent=1).encode()
    found = elements(document, "requests", size, fields=fields)
    assert [json.loads(raw) for _, raw in found] == [{"t": 1}, "x", 3]
    assert {key: json.loads(raw) for key, raw in fields.items()} == others


def test_fields_before_the_array_are_known_at_its_first_element() -> None:
    fields: dict[str, bytes] = {}
    chunks = [b'{"block_size": 64, "requests": [1, 2], "later": "x"}']
    stream = array_elements(chunks, "requests", BadRows("FILE"), fields)
    assert next(stream) == (1, b"1")
    assert fields == {"block_size": b"64"}
    assert list(stream) == [(1, b"2")]
    assert fields == {"block_size": b"64", "later": b'"x"'}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_each_element_comes_with_the_line_it_starts_on(size: int) -> None:
    document = b'[\n{"a":\n1},\n\n  "b\n", 3\n,[\n]]\n'
    assert [line for line, _ in elements(document, size=size)] == [2, 5, 6, 7]


BROKEN = {
    b"": "line 1: the JSON is cut off: expected an array, found the end of the file",
    b"{}": "line 1: expected an array",
    b"[": "line 1: the JSON is cut off: expected a value, found the end of the file",
    b'[\n1,\n"ab': "line 3: the JSON is cut off: the file ends inside this value",
    b'[1, {"a": [': "line 1: the JSON is cut off: the file ends inside this value",
    b"[1,\n]": "line 2: expected a value",
    b"[1\n2]": "line 2: expected , or ]",
    b"[,]": "line 1: expected a value",
    b"[1]\n[2]": "line 2: text follows the end of the JSON document",
}


@pytest.mark.parametrize("document", BROKEN)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_broken_structure_is_one_error(document: bytes, size: int) -> None:
    with pytest.raises(InputError) as caught:
        elements(document, size=size)
    assert str(caught.value) == f"FILE, {BROKEN[document]}"


BROKEN_OBJECTS = {
    b"[1]": "line 1: expected an object",
    b'{"a": 1}': "line 1, requests: is missing",
    b'{"requests": 1}': "line 1, requests: expected an array",
    b'{"requests": [],\n"requests": []}': "line 2, requests: is there twice",
    b"{1: 2}": "line 1: expected a key",
    b'{"a" 2}': "line 1: expected a colon",
    b'{"\xff": 2}': "line 1: a key is no sound string",
    b'{"requests": [1] "b": 2}': "line 1: expected , or }",
}


@pytest.mark.parametrize("document", BROKEN_OBJECTS)
def test_a_broken_object_is_one_error(document: bytes) -> None:
    with pytest.raises(InputError) as caught:
        elements(document, "requests")
    assert str(caught.value) == f"FILE, {BROKEN_OBJECTS[document]}"


def test_an_element_without_end_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jsonstream, "LONGEST_ELEMENT_BYTES", 1 << 20)
    taken = 0

    def endless() -> Any:
        nonlocal taken
        yield b'[1,\n"'
        while True:
            taken += 1
            yield b"x" * 65536

    with pytest.raises(InputError, match="FILE, line 2: an element is longer than 1 MiB"):
        list(array_elements(endless(), None, BadRows("FILE")))
    assert taken < 20


@given(st.binary(max_size=60), st.integers(1, 9), st.sampled_from([None, "a"]))
def test_any_bytes_are_elements_or_one_error(document: bytes, size: int, key: str | None) -> None:
    start = b"[" if key is None else b'{"a": ['
    try:
        found = elements(start + document, key, size)
    except InputError as error:
        found = []
        message = str(error)
    else:
        message = "FILE, line 1"
    assert message.startswith("FILE, line ")
    assert all(raw in document for _, raw in found)


def test_the_first_object_is_found_however_it_stands_and_as_far_as_it_goes() -> None:
    assert first_object(b' {"a": [1, {"b": 2}], "c": "x\\"y"}\n{"d": 1}') == {
        "a": b'[1, {"b": 2}]',
        "c": b'"x\\"y"',
    }
    assert first_object(b'[\n {"id": 7, "conversations": [{"fr') == {
        "id": b"7",
        "conversations": b'[{"fr',
    }
    assert first_object(b'{"a": NaN, "b": "cut o') == {"a": b"NaN", "b": b'"cut o'}
    assert first_object(b'{"a": 1, "b') == {"a": b"1"}
    assert first_object(b"[1, 2]") == first_object(b"") == first_object(b'{"a"') == {}


@given(st.binary(max_size=60))
def test_the_first_object_of_any_bytes_is_some_fields(head: bytes) -> None:
    for raw in first_object(b'{"a":' + head).values():
        assert raw in head
