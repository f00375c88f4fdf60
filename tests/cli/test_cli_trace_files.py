"""`hicache trace convert | slice | generate | anonymize`: what is written, said and refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from cli_helpers import COMMAND, SHIPPED_TRACE, files_under, hicache, line, write_lines

from cli import main as command
from traces.reader import open_trace
from traces.rows import Row
from traces.workloads import WORKLOADS
from traces.workloads.mix import MixOptions
from traces.workloads.multi_turn import MultiTurnOptions

Run = Callable[..., tuple[int, str, str]]
HEAD = 60


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `hicache trace` with arguments in this process: exit code, output, errors."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hicache", "trace", *map(str, arguments)])
        code = command.run()
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    """The first rows of the shipped trace, in a folder of their own."""
    path = tmp_path / "in" / "mine.jsonl"
    path.parent.mkdir()
    path.write_text("".join(SHIPPED_TRACE.read_text().splitlines(keepends=True)[:HEAD]))
    return path


def rows_of(path: Path) -> list[Row]:
    return [row for batch in open_trace(path).stream().batches() for row in batch.rows]


def sha256_said(out: str) -> str:
    (found,) = re.findall(r"sha256 ([0-9a-f]{64})$", out, re.M)
    return found


# --- What all four share


@pytest.mark.parametrize("name", ["convert", "slice", "anonymize"])
@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_file_is_written_whole_and_named_by_its_hash(
    run: Run, mooncake: Path, tmp_path: Path, name: str, ending: str
) -> None:
    out = tmp_path / f"made.jsonl{ending}"
    code, said, err = run(name, mooncake, out)
    assert (code, err) == (0, "")
    assert f"{out}: {HEAD} requests as " in said
    assert sha256_said(said) == open_trace(out).sha256
    assert len(rows_of(out)) == HEAD
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == [out.name]
    magic = {"": b"{", ".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}[ending]
    assert out.read_bytes().startswith(magic)


@pytest.mark.parametrize("name", ["convert", "slice", "anonymize", "generate"])
def test_a_file_that_is_there_stays_unless_forced(
    run: Run, mooncake: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "made"
    out.write_text("precious")
    what = ("rotating-prefixes",) if name == "generate" else (mooncake,)
    code, said, err = run(name, *what, out)
    assert (code, said) == (2, "")
    assert err == f"hicache: error: {out}: is there already; --force replaces it\n"
    assert out.read_text() == "precious"
    code, _, err = run(name, *what, out, "--force")
    assert (code, err) == (0, "")
    assert rows_of(out)


@pytest.mark.parametrize("name", ["convert", "slice", "anonymize"])
def test_the_trace_itself_is_never_overwritten(
    run: Run, mooncake: Path, tmp_path: Path, name: str
) -> None:
    before = mooncake.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(mooncake)
    hard = tmp_path / "hard"
    os.link(mooncake, hard)
    for out in (mooncake, link, hard):
        code, _, err = run(name, mooncake, out, "--force")
        assert code == 2
        assert "is the trace itself, which is never overwritten" in err
    # A file of a folder that is the trace is it, too.
    code, _, err = run(name, mooncake.parent, mooncake, "--force")
    assert "is the trace itself" in err
    for out in (tmp_path, Path("/dev/null")):
        code, _, err = run(name, mooncake, out, "--force")
        assert (code, "is no file that could be replaced" in err) == (2, True)
    code, _, err = run(name, mooncake, tmp_path / "no" / "folder")
    assert (code, "cannot be written: No such file or directory" in err) == (2, True)
    assert mooncake.read_bytes() == before


def test_dashes_are_standard_input_and_output(mooncake: Path, tmp_path: Path) -> None:
    text = mooncake.read_bytes()
    done = hicache("trace", "slice", "-", "-", "--requests", ":9", cwd=tmp_path, stdin=text)
    assert done.returncode == 0
    assert done.stdout.encode() == b"".join(text.splitlines(keepends=True)[:9])
    digest = hashlib.sha256(done.stdout.encode()).hexdigest()
    assert done.stderr == f"standard output: 9 requests as mooncake, sha256 {digest}\n"
    # From a pipe it cannot be known before what will be lost.
    done = hicache("trace", "convert", "-", "-", "--to", "azure", cwd=tmp_path, stdin=text)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == HEAD + 1
    said = done.stderr.splitlines()
    assert said[0] == "may be lost: All ids: no request shares a prefix any more."
    assert len([each for each in said if each.startswith("may be lost: Left out, where")]) == 3
    assert "lost: All ids: no request shares a prefix any more." in said
    assert files_under(tmp_path) == {"in": b"(folder)", "in/mine.jsonl": text}


def test_malformed_rows_leave_no_file_or_are_said(run: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", line([0], 512), line([0, 1], 512), line([0], 512))
    out = tmp_path / "out"
    code, _, err = run("convert", path, out)
    assert code == 2
    assert err.startswith(f"hicache: error: {path}, line 2, hash_ids: 2 ids do not match")
    assert not out.exists()
    code, said, err = run("convert", path, out, "--on-error", "skip")
    assert (code, err) == (0, "")
    assert "left out: 1 malformed row: line 2, hash_ids: 2 ids do not match" in said
    assert len(rows_of(out)) == 2


def test_ctrl_c_leaves_nothing_half_written(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "trace", "generate", "rotating-prefixes", "big.jsonl", "--requests", "50000000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not any(each.stat().st_size for each in tmp_path.iterdir()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    said = b"interrupted: no result was written\n"
    assert (process.returncode, out, err) == (130, b"", said)
    assert list(tmp_path.iterdir()) == []


# --- convert


def test_what_is_lost_is_said_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    talk = tmp_path / "talk"
    assert run("generate", "multi-turn", talk, "--clients", "3", "--rounds", "2")[0] == 0
    code, said, err = run("convert", talk, tmp_path / "plain", "--to", "mooncake")
    assert (code, err) == (0, "")
    lines = said.splitlines()
    assert lines[0].startswith("lost: Ids are new ones, of blocks of 512 tokens")
    assert "lost: Left out, for 3 of 6 requests: which answer a request waits for" in said
    assert lines[-1].startswith(f"{tmp_path / 'plain'}: 6 requests as mooncake")
    # Also where writing then fails.
    code, said, err = run("convert", talk, tmp_path / "no" / "plain", "--to", "mooncake")
    assert code == 2
    assert said.startswith("lost: Ids are new ones")
    # All is held by this project's own format, and nothing is said.
    code, said, _ = run("convert", talk, tmp_path / "same")
    assert said.count("\n") == 1
    assert (tmp_path / "same").read_bytes() == talk.read_bytes()


def test_there_and_back_changes_nothing(run: Run, mooncake: Path, tmp_path: Path) -> None:
    own, back = tmp_path / "own.zst", tmp_path / "back"
    assert run("convert", mooncake, own)[0] == 0
    assert run("convert", own, back, "--to", "mooncake")[0] == 0
    assert rows_of(back) == rows_of(mooncake)


def test_block_sizes_of_the_trace_and_of_what_is_written(run: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", line([0, 1], 32))
    code, _, err = run("convert", path, tmp_path / "a", "--to", "mooncake")
    assert (code, "--block-size 16 fits this line" in err) == (2, True)
    arguments = ("convert", path, tmp_path / "a", "--trace-block-size", "16")
    assert run(*arguments, "--to", "mooncake", "--block-size", "8")[0] == 0
    assert json.loads((tmp_path / "a").read_text())["hash_ids"] == [0, 1, 2, 3]
    code, _, err = run(*arguments, "--to", "azure", "--block-size", "8")
    assert (code, "azure has no blocks of one size" in err) == (2, True)
    code, _, err = run(*arguments, "--to", "parquet")
    assert (code, "what can be written is hicache, mooncake" in err) == (2, True)


# --- slice


def test_a_slice_of_mooncake_is_the_very_lines(run: Run, mooncake: Path, tmp_path: Path) -> None:
    lines = mooncake.read_text().splitlines(keepends=True)
    start_ms = json.loads(lines[0])["timestamp"]
    within = [each for each in lines if json.loads(each)["timestamp"] - start_ms < 60_000]
    assert 1 < len(within) < HEAD
    cases: list[tuple[tuple[str, ...], list[str]]] = [
        (("--requests", "10:20"), lines[10:20]),
        (("--requests", ":7"), lines[:7]),
        (("--requests", "50:"), lines[50:]),
        (("--to", "60"), within),
        (("--from", "60"), lines[len(within) :]),
        (("--every", "3"), lines[::3]),
        (("--requests", "5:", "--every", "2", "--first", "4"), lines[6:14:2]),
    ]
    for options, expected in cases:
        code, said, err = run("slice", mooncake, tmp_path / "out", "--force", *options)
        assert (code, err) == (0, "")
        assert (tmp_path / "out").read_text() == "".join(expected), options
        assert sha256_said(said) == hashlib.sha256("".join(expected).encode()).hexdigest()


def test_sessions_are_cut_through_or_kept_whole(run: Run, tmp_path: Path) -> None:
    talk = tmp_path / "talk"
    run("generate", "multi-turn", talk, "--clients", "4", "--rounds", "3")
    code, said, _ = run("slice", talk, tmp_path / "a", "--requests", "4:8")
    assert code == 0
    assert "note: " in said
    assert "wait for no other any more" in said
    code, said, _ = run("slice", talk, tmp_path / "b", "--first", "2", "--whole", "sessions")
    assert (code, "note: " in said) == (0, False)
    assert len(rows_of(tmp_path / "b")) == 6
    code, said, _ = run("slice", talk, tmp_path / "c", "--sessions", "1", "--to-format", "bailian")
    assert code == 0
    assert "3 requests as bailian" in said
    assert said.startswith("lost: ")


def test_a_slice_keeps_the_block_size_of_the_trace(run: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", line([0, 1], 32), line([0, 2], 30, 5))
    for options in ((), ("--to-format", "mooncake")):
        arguments = ("slice", path, tmp_path / "out", "--block-size", "16", "--force", *options)
        assert run(*arguments)[0] == 0
        assert (tmp_path / "out").read_text() == path.read_text()


def test_a_part_of_a_table_of_dates_keeps_its_dates(run: Run, tmp_path: Path) -> None:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 23:59:59.9799601,4808,10"]
    lines += ["2023-11-17 00:00:10.0000001,7,3", "2023-11-17 00:00:20.0000000,8,4", ""]
    path = tmp_path / "t"
    path.write_bytes("\r\n".join(lines).encode())
    assert run("slice", path, tmp_path / "out", "--from", "5")[0] == 0
    assert (tmp_path / "out").read_bytes() == "\r\n".join([lines[0], *lines[2:]]).encode()
    assert run("convert", path, tmp_path / "own")[0] == 0
    assert run("convert", tmp_path / "own", tmp_path / "back", "--to", "azure")[0] == 0
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    run("anonymize", path, tmp_path / "hidden", "--to", "azure")
    assert b"1970-01-01 00:00:00" in (tmp_path / "hidden").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--requests", "7"), "--requests is '7': it must be like 100:200, :200 or 100:"),
        (("--requests", "a:b"), "--requests is 'a:b'"),
        (("--requests", "7:3"), "requests is 7:3: the end must come after the start"),
        (("--requests", "-3:3"), "requests is -3:3"),
        (("--every", "0"), "every is 0: it must be at least 1"),
        (("--whole", "days"), "whole is 'days': it must be rows or sessions"),
        (("--from", "60", "--to", "50"), "nothing is between"),
        (("--from", "9999999"), "there is not one request to write"),
        (("--to-format", "csv"), "format is 'csv'"),
    ],
)
def test_bad_cuts_are_one_line(
    run: Run, mooncake: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    code, said, err = run("slice", mooncake, tmp_path / "out", *options)
    assert (code, said) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- generate


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_option_of_every_workload_is_in_its_help(run: Run, name: str) -> None:
    code, out, _ = run("generate", name, "--help")
    assert code == 0
    words = " ".join(out.split())
    assert f"Example: hicache trace generate {name} " in words
    for each in fields(WORKLOADS[name].options):
        if each.name == "block_tokens":
            continue
        default = each.default
        if isinstance(default, tuple):
            default = ",".join(str(number) for number in default)
        found = re.search(rf"--{each.name.replace('_', '-')} \S+ default (\S+); (.+?) (?=-)", words)
        assert found is not None, each.name
        assert found[1] == str(default)


def test_options_reach_the_workload(run: Run, tmp_path: Path) -> None:
    arguments = ("multi-turn", tmp_path / "a", "--clients", "5", "--rounds", "2", "--seed", "9")
    assert run("generate", *arguments, "--arrival", "uniform", "--think-s", "1.5")[0] == 0
    options = MultiTurnOptions(seed=9, clients=5, rounds=2, arrival="uniform", think_s=1.5)
    stream = WORKLOADS["multi-turn"].generate(options)
    assert rows_of(tmp_path / "a") == [row for batch in stream.batches() for row in batch.rows]
    pairs = ("--round-ratios", "0,1", "--new-tokens", "30,20")
    assert run("generate", "mix", tmp_path / "b", "--duration-s", "30", *pairs)[0] == 0
    stream = WORKLOADS["mix"].generate(
        MixOptions(duration_s=30, round_ratios=(0, 1), new_tokens=(30, 20))
    )
    assert rows_of(tmp_path / "b") == [row for batch in stream.batches() for row in batch.rows]


def test_the_same_options_give_the_same_bytes(run: Run, tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        assert run("generate", "agents", tmp_path / name, "--hours", "0.05")[0] == 0
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).startswith(b'{"hicache_trace":1')
    arguments = ("agents", tmp_path / "c", "--hours", "0.05", "--to", "mooncake")
    assert run("generate", *arguments, "--block-tokens", "64")[0] == 0
    assert open_trace(tmp_path / "c", block_tokens=64).format == "mooncake"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing", "out"), "workload is 'nothing': what can be generated is multi-turn, "),
        (("multi-turn", "out", "--clients", "0"), "clients is 0: it must lie between 1 and"),
        (("multi-turn", "out", "--think-s", "nan"), "think_s is nan: it must be a number"),
        (("multi-turn", "out", "--order", "lifo"), "order is 'lifo': it must be random or fifo"),
        (("mix", "out", "--new-tokens", "1,x"), "new_tokens is '1,x': it must be whole numbers"),
        (("mix", "out", "--new-tokens", "1"), "both must have one for each round"),
        (("agents", "out", "--hours", "0.001", "--sessions-per-hour", "0.001"), "gives no request"),
    ],
)
def test_bad_options_of_workloads_are_one_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, err = run("generate", *arguments)
    assert (code, said) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- anonymize


def test_an_anonymous_trace_shares_as_much_and_says_nothing(
    run: Run, mooncake: Path, tmp_path: Path
) -> None:
    code, said, err = run("anonymize", mooncake, tmp_path / "a")
    assert (code, err) == (0, "")
    assert "what can still be seen: when requests came" in said
    assert "the same blocks of 512 tokens" in said
    assert "whoever has the salt" not in said
    code, said, _ = run("anonymize", mooncake, tmp_path / "b")
    rows, one, other = (rows_of(each) for each in (mooncake, tmp_path / "a", tmp_path / "b"))
    for row, made, again in zip(rows, one, other, strict=True):
        assert (made.input_length, made.output_length) == (row.input_length, row.output_length)
        assert len(made.hash_ids) == len(row.hash_ids)
        assert made.timestamp == (row.timestamp or 0) - (rows[0].timestamp or 0)
        assert not {*made.hash_ids} & {*again.hash_ids, *row.hash_ids}
    shared = []
    for path in (mooncake, tmp_path / "a"):
        trace = open_trace(path)
        list(trace.requests(64))
        shared.append((trace.facts.ideal_blocks, trace.facts.ideal_pages))
    assert shared[0] == shared[1] > (100, 100)
    assert run("anonymize", mooncake, tmp_path / "c", "--to", "mooncake")[0] == 0
    assert open_trace(tmp_path / "c").format == "mooncake"


def test_what_can_still_be_seen_is_said_in_full(run: Run, tmp_path: Path) -> None:
    talk = tmp_path / "talk"
    run("generate", "multi-turn", talk, "--clients", "2", "--rounds", "2")
    said = run("anonymize", talk, tmp_path / "a")[1]
    assert (
        "which requests are of one session, which answer a request waits for and how long after "
        "it comes and hints for a replay (" in said
    )
    row = '{"rid": "a", "timestamp": 1, "input_length": 1, "output_length": 1, "input_ids": [7]'
    served = tmp_path / "served"
    served.write_text(f'{row}, "final_prefix_cache_len": 0}}\n')
    said = run("anonymize", served, tmp_path / "b")[1]
    assert (rows_of(tmp_path / "b")[0].cached_tokens, "server found" in said) == (-1, False)
    said = run("anonymize", served, tmp_path / "c", "--keep-recorded")[1]
    assert (rows_of(tmp_path / "c")[0].cached_tokens, "server found" in said) == (0, True)


def test_the_same_salt_gives_the_same_ids(run: Run, mooncake: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        code, said, _ = run("anonymize", mooncake, tmp_path / name, "--salt", "pepper")
        assert code == 0
        assert "whoever has the salt can test" in said
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert run("anonymize", mooncake, tmp_path / "c", "--block-size", "128")[0] == 0
    assert open_trace(tmp_path / "c").block_tokens == 128
    code, _, err = run("anonymize", mooncake, tmp_path / "d", "--salt", "")
    assert (code, "the salt has 0 bytes" in err) == (2, True)
    code, _, err = run("anonymize", mooncake, tmp_path / "d", "--block-size", "0")
    assert (code, "block size is 0" in err) == (2, True)
