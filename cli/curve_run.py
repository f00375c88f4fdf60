"""What `hicache curve` does with its arguments. Thin: it parses, calls, writes and prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from cli.curve_table import curve_text
from cli.targets import check_apart, check_picture, check_target
from cli.writing import write_document, write_picture
from hicache.errors import InputError
from scenario.names import nearest
from scenario.sizes import parse_size
from sim.curve_sample import Sample
from sim.curve_study import (
    RELATIONS,
    SCHEMA,
    CurveQuestions,
    CurveStudy,
    Relation,
    study_curve,
)
from sim.curve_trace import CurveRules
from traces.progress import ProgressBar
from traces.reader import OnError, open_trace

INTERRUPTED = 130
CURVE_WORD = "curve"
_LARGEST_PAGES = 1 << 60


@dataclass(slots=True)
class CurveArguments:
    """The command's arguments as given; texts are not looked at yet."""

    trace: str
    page_size: int
    out: str | None = None
    plot: str | None = None
    at: str = ""
    optimum: str = ""
    tiers: str = ""
    relation: str = ""
    pages: str = "partial"
    hit_cap: str = "none"
    outputs: str = "dropped"
    sample: float | None = None
    seed: int = 0
    model: str = ""
    block_size: int | None = None
    tokenizer: str = ""
    on_error: str = "stop"
    quiet: bool = False
    force: bool = False


def run_curve(given: CurveArguments) -> int:
    """Make the curve, write and print it. Returns the exit code: 0, or 130 where Ctrl-C ended the
    reading; what had been read until then is kept. Raises InputError for what cannot be.
    """
    rules = CurveRules(given.page_size, given.pages, given.hit_cap, given.outputs)  # pyright: ignore[reportArgumentType]
    page_bytes = None
    if given.model:
        from scenario.geometry import load_geometry

        page_bytes = load_geometry(given.model).kv_bytes_per_token * given.page_size
    questions = _questions(given, page_bytes)
    sample = None if given.sample is None else Sample(given.sample, given.seed)
    _check_targets(given)
    with ProgressBar("reading") as progress:
        trace = open_trace(
            given.trace,
            block_tokens=given.block_size,
            progress=progress,
            tokenizer=given.tokenizer,
            on_error=cast(OnError, given.on_error),  # looked at there
        )
        study = study_curve(trace, rules, questions, sample)
    if page_bytes:
        study.document = {"page_bytes": page_bytes} | study.document
    _write(study, given, page_bytes)
    if study.interrupted:
        print("interrupted: the curve is that of the requests read before", file=sys.stderr)
        return INTERRUPTED
    return 0


def _write(study: CurveStudy, given: CurveArguments, page_bytes: int | None) -> None:
    said = sys.stderr if given.out == "-" else sys.stdout
    if given.out is not None:
        write_document({"schema": SCHEMA, **study.document}, given.out)
    if given.plot is not None:
        from sim.curve_plot import save_curve

        write_picture(lambda path: save_curve(study, path, page_bytes), given.plot)
    if not given.quiet:
        said.write(curve_text(study, page_bytes))
        for name, path in (("curve", given.out), ("plot", given.plot)):
            if path not in (None, "-"):
                print(f"{name}: {path}", file=said)
    elif given.out != "-":
        for warning in study.document["warnings"]:
            print(f"warning: {warning}", file=sys.stderr)


def _questions(given: CurveArguments, page_bytes: int | None) -> CurveQuestions:
    relation = given.relation
    if relation not in ("", *RELATIONS):
        raise InputError(
            f"--relation is {relation!r}{nearest(relation, RELATIONS)}: it must be "
            f"{', '.join(RELATIONS[:-1])} or {RELATIONS[-1]}"
        )
    if relation and not given.tiers:
        raise InputError("--relation says how --tiers work together: give these, too")
    words = [each for each in given.optimum.split(",") if each.strip() != CURVE_WORD]
    wants_curve = len(words) < len(given.optimum.split(","))
    optimum = ",".join(words) if given.optimum and words else ""
    return CurveQuestions(
        lru_at=list(_capacities("--at", given.at, page_bytes, given.page_size)),
        optimum_at=list(_capacities("--optimum", optimum, page_bytes, given.page_size)),
        optimum_curve=wants_curve,
        tiers=list(_capacities("--tiers", given.tiers, page_bytes, given.page_size)),
        relation=cast(Relation, relation or "inclusive"),
    )


def _capacities(option: str, text: str, page_bytes: int | None, page: int) -> Iterator[int]:
    """Pages of each size in a list such as "6000,12000pages,40GiB"; a bare number is of pages."""
    if not text:
        return
    for each in text.split(","):
        written = each.strip()
        bare = written.replace("_", "")
        size = parse_size(f"{written}pages" if bare.isdecimal() else written, option)
        if size.unit in ("x", "auto"):
            raise InputError(f"{option} is {written}: it must be pages, tokens or bytes")
        if page_bytes is None and size.unit not in ("pages", "tokens"):
            raise InputError(
                f"{option} is {written}: how many pages that is depends on the model: give --model"
            )
        pages = size.pages(option, page, page_bytes or 1)
        if not 0 < pages < _LARGEST_PAGES:
            raise InputError(f"{option} is {written}: it must be at least one page")
        yield pages


def _check_targets(given: CurveArguments) -> None:
    """`InputError` if --out or --plot must not be written: before anything is read."""
    check_picture("--plot", given.plot)
    check_apart({"--out": given.out, "--plot": given.plot})
    for path in (given.out, given.plot):
        if path is not None and path != "-":
            check_target(path, "curve", replaces=given.force, trace=given.trace)
