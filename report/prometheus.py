"""Prometheus' text format, as far as a scrape of a server needs it: samples and differences.

Read are names, labels and values; what a comment says, time stamps and exemplars are not. Which
metrics there should be is `report.compare_metrics`' business: others are read and kept.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hicache.errors import InputError

Labels = tuple[tuple[str, str], ...]  # sorted by name

# Labels that tell apart the ranks of one server. Each counts the same tokens; docs/sglang.md.
RANK_LABELS = frozenset(
    {"tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "attn_tp_rank", "cp_rank", "rank"}
)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))', re.S)
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_PREFIXES = ("sglang:", "sglang_")


class Scrape(NamedTuple):
    """The series of one scrape: by name without `sglang:`, then by labels. `source` names it."""

    source: str
    series: dict[str, dict[Labels, float]]


def read_scrape(path: str) -> Scrape:
    """The scrape in a file ("-": standard input). Raises InputError, naming file and line, for what
    is no such text, and for one without any series of SGLang's.
    """
    source = "standard input" if path == "-" else path
    try:
        if path == "-":
            text = sys.stdin.buffer.read().decode()
        else:
            with open(os.path.expanduser(path), encoding="utf-8") as opened:
                text = opened.read()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not a text in UTF-8 (byte {error.start})") from None
    return parse_scrape(text, source)


def parse_scrape(text: str, source: str) -> Scrape:
    """`read_scrape` of a text."""
    series: dict[str, dict[Labels, float]] = {}
    ours = False
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, labels, value = _sample(line, f"{source}, line {number}")
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                name, ours = name[len(prefix) :], True
        series.setdefault(name, {})[labels] = value
    if not ours:
        what = "no series of SGLang's (sglang:...)" if series else "no series at all"
        raise InputError(
            f"{source}: {what}: is it what GET /metrics of the server gave? It must have been "
            "started with --enable-metrics"
        )
    return Scrape(source, series)


def filtered(scrape: Scrape, wanted: Mapping[str, str]) -> Scrape:
    """The series that have all of these labels. Raises InputError where none has one."""
    for name, value in wanted.items():
        there = label_values(scrape, name)
        if value not in there:
            has = f"it is one of {', '.join(there)}" if there else "no series has that label"
            raise InputError(f"{scrape.source}: no series with {name}={value!r}: {has}")
    series = {
        name: {
            labels: value
            for labels, value in by_labels.items()
            if all(item in labels for item in wanted.items())
        }
        for name, by_labels in scrape.series.items()
    }
    return Scrape(scrape.source, {name: each for name, each in series.items() if each})


def label_values(scrape: Scrape, name: str) -> list[str]:
    """The values of a label, in order."""
    return sorted(
        {
            value
            for by_labels in scrape.series.values()
            for labels in by_labels
            for label, value in labels
            if label == name
        }
    )


def since(later: Scrape, earlier: Scrape, gauges: frozenset[str]) -> Scrape:
    """What was counted between two scrapes; of `gauges` the later value. Raises InputError where a
    count fell: the server began anew in between.
    """
    series: dict[str, dict[Labels, float]] = {}
    for name, by_labels in later.series.items():
        before = {} if name in gauges else earlier.series.get(name, {})
        for labels, value in by_labels.items():
            grown = value - before.get(labels, 0.0)
            if grown < 0 and _counts(name):
                raise InputError(
                    f"{later.source}: {name} is {value:g}, and in {earlier.source} it was "
                    f"{before[labels]:g}: the server was started again in between, or the two are "
                    "in the wrong order"
                )
            series.setdefault(name, {})[labels] = value if name in gauges else grown
    return Scrape(f"{later.source} since {earlier.source}", series)


def of_ranks(by_labels: Mapping[Labels, float], ranks: str) -> float:
    """The total over all series; of the ranks of one server the largest value (`ranks` "largest"),
    or their sum ("sum").
    """
    if ranks == "sum":
        return sum(by_labels.values())
    largest: dict[Labels, float] = {}
    for labels, value in by_labels.items():
        key = tuple(item for item in labels if item[0] not in RANK_LABELS)
        largest[key] = max(value, largest.get(key, value))
    return sum(largest.values())


def histogram(scrape: Scrape, name: str) -> list[tuple[float, float]]:
    """The buckets of a histogram, all its series together: (upper edge, how many up to there),
    ascending. Empty where there is none.
    """
    totals: dict[float, float] = {}
    for labels, count in scrape.series.get(f"{name}_bucket", {}).items():
        edge = dict(labels).get("le")
        if edge is not None:
            totals[float(edge)] = totals.get(float(edge), 0.0) + count
    return sorted(totals.items())


def quantile(buckets: list[tuple[float, float]], share: float) -> tuple[float, float] | None:
    """The edges of the bucket in which this share of all observations is reached; None without
    any. The upper edge may be infinite.
    """
    if not buckets or buckets[-1][1] <= 0:
        return None
    below = 0.0
    for edge, count in buckets:
        if count >= share * buckets[-1][1]:
            return below, edge
        below = edge
    return None


def at_rank(ordered: Sequence[int], share: float) -> int:
    """The observation that falls into the bucket which `quantile` names: by the same rank, and not
    between two of them. `ordered`: all observations, ascending; at least one.
    """
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def _counts(name: str) -> bool:
    return name.endswith(("_total", "_bucket", "_count"))


def _sample(line: str, where: str) -> tuple[str, Labels, float]:
    found = _NAME.match(line)
    if found is None:
        raise InputError(f"{where}: no sample of Prometheus' text format: {_short(line)}")
    rest, labels = line[found.end() :], dict[str, str]()
    if rest.startswith("{"):
        rest, labels = _labels(rest, where, line)
    words = rest.split("#", 1)[0].split()
    if not 1 <= len(words) <= 2:
        raise InputError(f"{where}: a sample is a name, labels and a value: {_short(line)}")
    try:
        value = float(words[0])
    except ValueError:
        raise InputError(f"{where}: the value {words[0]!r} is no number") from None
    return found[0], tuple(sorted(labels.items())), value


def _labels(rest: str, where: str, line: str) -> tuple[str, dict[str, str]]:
    labels: dict[str, str] = {}
    place = 1
    while (found := _LABEL.match(rest, place)) is not None:
        labels[found[1]] = re.sub(r"\\[\\\"n]", lambda each: _ESCAPED[each[0]], found[2])
        place = found.end()
    closing = re.compile(r"\s*\}").match(rest, place)
    if closing is None:
        raise InputError(f"{where}: its labels are not well formed: {_short(line)}")
    return rest[closing.end() :], labels


def _short(line: str) -> str:
    return repr(line if len(line) <= 60 else f"{line[:57]}...")


def sample_line(name: str, labels: Mapping[str, str], value: float) -> str:
    """One sample as text."""
    shown = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    number = str(value) if isinstance(value, int) else f"{value:.17g}"
    return f"{name}{{{shown}}} {number}" if shown else f"{name} {number}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def wanted_labels(texts: list[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as labels. Raises InputError for one without `=`."""
    wanted: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--label {text}: write NAME=VALUE, as in model_name=Qwen3-8B")
        wanted[name.strip()] = value.strip().strip('"')
    return wanted
