"""Every malformed line and file is one `InputError` that names file, line, field and reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from trace_helpers import line, write_lines

from hicache.errors import InputError
from traces import source as source_module
from traces.reader import open_trace

GOOD = line([0], 512, 1000)
START = '{"timestamp": 1000, "input_length": 512, "output_length": 1, "hash_ids": '


def refusal(path: Path, block_tokens: int = 512) -> str:
    with pytest.raises(InputError) as caught:
        list(open_trace(path, block_tokens=block_tokens).requests(1))
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message.replace(str(path), "FILE")


BAD_LINES = {
    "truncated": (START + "[0", "hash_ids: the JSON is cut off: the line ends inside it"),
    "truncated early": ('{"timestamp": 10', "timestamp: the JSON is cut off"),
    "truncated at once": ("{", "FILE, line 3: the JSON is cut off"),
    "not JSON": (START + "[0] oops}", "hash_ids: is no JSON: "),
    "NaN": (GOOD.replace("1000", "NaN"), "timestamp: is no JSON: invalid character at byte 14"),
    "two objects": (GOOD + GOOD, "hash_ids: is no JSON: trailing characters"),
    "an array": ("[1, 2]", "FILE, line 3: expected object, got array"),
    "a number": ("7", "FILE, line 3: expected object, got int"),
    "no timestamp": (GOOD.replace("timestamp", "time"), "timestamp: is missing"),
    "no input_length": (GOOD.replace("input_length", "input"), "input_length: is missing"),
    "no output_length": (GOOD.replace("output_length", "output"), "output_length: is missing"),
    "no hash_ids": (GOOD.replace("hash_ids", "ids"), "hash_ids: is missing"),
    "text for a time": (GOOD.replace("1000", '"1"'), "timestamp: expected int | float, got str"),
    "bool for a time": (GOOD.replace("1000", "true"), "timestamp: expected int | float, got bool"),
    "null for a time": (GOOD.replace("1000", "null"), "timestamp: expected int | float, got null"),
    "a time out of range": (GOOD.replace("1000", "1e999"), "timestamp: Number out of range"),
    "a time in ns": (GOOD.replace("1000", "1" + "0" * 18), "is no time in milliseconds"),
    "a time before time": (GOOD.replace("1000", "-1e18"), "-1e+18 is no time in milliseconds"),
    "an earlier time": (
        line([0], 512, 999.5),
        "timestamp: 999.5 is earlier than 1000 of the request before",
    ),
    "a float length": (GOOD.replace("512", "51.5"), "input_length: expected int, got float"),
    "a bool length": (GOOD.replace("512", "true"), "input_length: expected int, got bool"),
    "a zero length": (GOOD.replace("512", "0"), "input_length: expected int >= 1"),
    "a negative length": (GOOD.replace("512", "-512"), "input_length: expected int >= 1"),
    "a huge length": (GOOD.replace("512", "9" * 30), "input_length: expected int <= 2147483647"),
    "a negative output": (line([0], 512, 1000, -1), "output_length: expected int >= 0"),
    "ids that are no list": (START + "7}", "hash_ids: expected array, got int"),
    "ids by kind": (START + '{"a": [0]}}', "hash_ids: expected array, got object"),
    "a text id": (START + '["0"]}', "hash_ids[0]: expected int, got str"),
    "a bool id": (START + "[true]}", "hash_ids[0]: expected int, got bool"),
    "a float id": (START + "[0.5]}", "hash_ids[0]: expected int, got float"),
    "a negative id": (START + "[-1]}", "hash_ids[0]: expected int >= 0"),
    "an id too large": (START + f"[{1 << 64}]}}", f"hash_ids[0]: expected int <= {(1 << 64) - 1}"),
    "an id far too large": (START + f"[{1 << 70}]}}", "hash_ids[0]: expected int <= 1844674407370"),
    "no UTF-8 in what is not read": (START + '[0], "x": "\udcff"}', "is no UTF-8 text"),
    "nested without end": (START + "[0], " + '"x": ' + "[" * 10**5, "is nested too deeply"),
    "a session by kind": (START + '[0], "session_id": [1]}', "session_id: expected"),
    "too many ids": (
        line([0, 1], 512, 1000),
        "hash_ids: 2 ids do not match input_length 512, which is 1 block of 512 tokens; perhaps "
        "the trace has another block size: --block-size 256 fits this line and 1 of the 3 read "
        "with it",
    ),
    "too few ids": (line([0, 1], 2000, 1000), "2 ids do not match input_length 2000, which is 4 "),
    "no ids": (line([], 513, 1000), "hash_ids: 0 ids do not match input_length 513"),
    "ids for nothing": (line(range(700), 512, 1000), "no block size that is a power of two fits"),
    "no UTF-8": ('{"timestamp": 1, "\udcff": 2}', "FILE, line 3"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
@pytest.mark.parametrize("piece_bytes", [50, 128 << 10])
def test_bad_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, piece_bytes: int
) -> None:
    """Line 3 of the file is bad; line 2 is blank. It makes no difference how the file is cut."""
    bad, expected = BAD_LINES[kind]
    path = tmp_path / "trace.jsonl"
    text = f"{GOOD}\n\n{bad}\n{line([0], 512, 10**6)}\n"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    monkeypatch.setattr(source_module, "PIECE_BYTES", piece_bytes)
    message = refusal(path)
    assert message.startswith("FILE, line 3")
    if piece_bytes > 1000 or "read with it" not in expected:
        assert expected in message


@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_first_and_last_line(tmp_path: Path, kind: str) -> None:
    bad, _ = BAD_LINES[kind]
    path = tmp_path / "trace.jsonl"
    if "earlier" not in kind:
        path.write_bytes(bad.encode("utf-8", "surrogateescape"))
        assert refusal(path).startswith("FILE, line 1")
    text = f"{GOOD}\n{GOOD}\n{bad}"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert refusal(path).startswith("FILE, line 3")


def test_a_pretty_printed_object_is_not_a_line(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", [GOOD, *GOOD.replace(", ", ",\n").split("\n")])
    assert refusal(path).startswith("FILE, line 2, timestamp: the JSON is cut off")


def test_another_block_size_is_suggested_and_works(tmp_path: Path) -> None:
    lines = [line(range(n), 64 * n - 5, n) for n in range(2, 40)]
    path = write_lines(tmp_path / "t", lines)
    assert "--block-size 64 fits this line and 38 of the 38 read with it" in refusal(path)
    assert sum(1 for _ in open_trace(path, block_tokens=64).requests(16)) == 38


@pytest.mark.parametrize("text", [b"", b"\n", b" \n\r\n\n"])
@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_an_empty_trace(tmp_path: Path, text: bytes, how: str) -> None:
    path = tmp_path / "t"
    if how == "gzip":
        text = gzip.compress(text)
    elif how == "zstd":
        text = pa.compress(text, codec="zstd", asbytes=True)
    path.write_bytes(text)
    assert "FILE: the trace is empty" in refusal(path)


def test_blank_beyond_the_head(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\n" * 70_000)
    assert "FILE: the trace is empty" in refusal(path)


@pytest.mark.parametrize("cut", [1, 5, 9, 400, -9, -1])
@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_compressed_file_that_is_cut_off(tmp_path: Path, how: str, cut: int) -> None:
    text = "".join(f"{line([t], 512, t * 7)}\n" for t in range(3000)).encode()
    data = gzip.compress(text) if how == "gzip" else pa.compress(text, "zstd", asbytes=True)
    path = tmp_path / "t"
    path.write_bytes(data[:cut])
    message = refusal(path)
    if cut >= 5 or cut < 0:
        assert f"FILE: the {how} data is damaged or cut off" in message


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_compressed_file_that_is_damaged(tmp_path: Path, how: str) -> None:
    text = "".join(f"{line([t], 512, t * 7)}\n" for t in range(3000)).encode()
    data = gzip.compress(text) if how == "gzip" else pa.compress(text, "zstd", asbytes=True)
    damaged = bytearray(data)
    for index in range(len(data) // 2, len(data) // 2 + 40):
        damaged[index] ^= 0xFF
    path = tmp_path / "t"
    path.write_bytes(damaged)
    refusal(path)
    path.write_bytes(data + b"garbage behind it")
    refusal(path)


def test_no_file_a_folder_and_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == "FILE: cannot be opened: No such file or directory"
    assert refusal(tmp_path) == "FILE: is a folder without trace files (.json, .jsonl, .csv)"
    with pytest.raises(InputError, match="cannot be opened"):
        open_trace("a\0b")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (bytes(range(256)) * 10, "binary data"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, "binary data"),
        (b"\xff\xfe{\0}\0", "binary data"),
        (b"time,prompt,answer\n1,2,3\n", "text of an unknown format"),
        (b'{"a": 1}\n', "text of an unknown format"),
        (b"[1, 2]\n", "text of an unknown format"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    message = refusal(path)
    assert message.startswith(f"FILE, line 1: {kind}")
    assert "; docs/traces.md describes those that are known: mooncake, hicache, " in message
    assert len(message) < 300


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "LONGEST_LINE_BYTES", 1 << 20)
    path = tmp_path / "t"
    path.write_bytes(f"{GOOD}\n".encode() + b"x" * (3 << 20))
    assert refusal(path).startswith("FILE, line 2: longer than 1 MiB")
