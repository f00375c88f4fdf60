"""What the benchmarks replay: where the trace lies, and inputs that are made from shipped files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SHIPPED_TRACE = REPOSITORY / "data" / "agents.jsonl"
H200 = REPOSITORY / "scenario" / "profiles" / "nvidia-h200.json"
CONVERSATION = REPOSITORY.parent / "shared" / "traces" / "mooncake_conversation.jsonl"
WHERE_IT_IS = (
    "Mooncake's conversation trace (12,031 requests) is not beside this checkout; give its path "
    "(conversation_trace.jsonl of kvcache-ai/Mooncake, folder FAST25-release/traces)"
)
FASTER = 8


def fast_disk_profile(folder: Path) -> Path:
    """The H200 with a disk of 8 times the bandwidth, on which restores from L3 pay."""
    profile = json.loads(H200.read_text())
    profile["name"] = "nvidia-h200-fast-disk"
    for direction in ("read_bytes_per_s", "write_bytes_per_s"):
        curve = profile["disk"][direction]
        curve["provenance"] = "estimate"
        curve["how"] = f"{FASTER} times what was measured, for this benchmark"
        curve["points"] = [[*where, rate * FASTER] for *where, rate in curve["points"]]
    path = folder / "nvidia-h200-fast-disk.json"
    path.write_text(json.dumps(profile))
    return path


def repeated(trace: Path, times: int, folder: Path) -> Path:
    """The trace several times over, each time later and with ids of its own: nothing is hit across.

    One request stays one line, and the order stays that of arrival.
    """
    path = folder / f"{trace.stem}-x{times}.jsonl"
    span, ids = 0.0, 0
    for row in _rows(trace):
        span = row["timestamp"] + 1000
        ids = max(ids, 1 + max(row["hash_ids"], default=-1))
    with path.open("w") as written:
        for again in range(times):
            for row in _rows(trace):
                row["timestamp"] += again * span
                row["hash_ids"] = [each + again * ids for each in row["hash_ids"]]
                written.write(json.dumps(row) + "\n")
    return path


def head(trace: Path, requests: int, folder: Path) -> Path:
    """The first `requests` requests of a trace."""
    path = folder / f"{trace.stem}-head.jsonl"
    with trace.open() as lines, path.open("w") as written:
        written.writelines(line for _, line in zip(range(requests), lines, strict=False))
    return path


def _rows(trace: Path) -> Iterator[dict]:
    with trace.open() as lines:
        yield from (json.loads(line) for line in lines if not line.isspace())
