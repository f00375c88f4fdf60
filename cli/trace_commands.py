"""The commands of `hicache trace`. Thin: they parse, call and print."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import click
import typer

from cli.trace_workloads import WorkloadGroup
from cli.trace_writing import check_out, open_input, save, say
from hicache.errors import InputError
from traces.features import Features
from traces.reader import Trace
from traces.rows import RowStream
from traces.writers import WRITER_NAMES, TraceWriter, writer_of

_app = typer.Typer(rich_markup_mode=None)

_FORMATS = ", ".join(WRITER_NAMES)

TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace in any known format, plain, gzip or zstd; a folder where the format has "
        "several files; '-' is standard input.",
    ),
]
OutArgument = Annotated[
    str,
    typer.Argument(
        metavar="OUT", help="Compressed if it ends in .gz or .zst; '-' is standard output."
    ),
]
TraceBlockOption = Annotated[
    int | None,
    typer.Option(
        "--block-size",
        "--trace-block-size",
        metavar="TOKENS",
        help="Tokens of one id of TRACE, where its format does not say. [Mooncake: 512]",
    ),
]
OtherTraceBlockOption = Annotated[
    int | None,
    typer.Option(
        "--trace-block-size",
        metavar="TOKENS",
        help="Tokens of one id of TRACE, where its format does not say. [Mooncake: 512]",
    ),
]
TokenizerOption = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="A Hugging Face tokenizer.json, for traces that hold texts.",
    ),
]
OnErrorOption = Annotated[
    str,
    typer.Option(
        metavar="stop|skip", help="Malformed rows: stop at the first, or leave out and list."
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")]
ToOption = Annotated[str, typer.Option(metavar="FORMAT", help=f"Format of OUT: {_FORMATS}.")]


def command(name: str) -> click.Command:
    """The command of that name, ready to run."""
    group = typer.main.get_command(_app)
    assert isinstance(group, click.Group), "an application of several commands is a group"
    return group.commands[name]


@_app.command()
def info(
    trace: TraceArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, no table.")] = False,
    page_size: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Pages for which ideal hits are also given. [64, as in a replay; else a block]",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Also give cache sizes in GiB of KV of this model: Qwen3-8B, or a config.json.",
        ),
    ] = "",
    block_size: TraceBlockOption = None,
    tokenizer: TokenizerOption = "",
    on_error: OnErrorOption = "stop",
) -> None:
    """Say what is in a trace: rate, lengths, sessions, sharing, and what looks wrong.

    Ideal hits are those of a cache without bounds. Below stands how large an LRU cache must be for
    parts of them, which prefixes are shared most, and what a replay should be warned of.

    Example: hicache trace info trace.jsonl.gz --page-size 64
    """
    from traces.info import trace_info

    geometry = None
    if model:
        from scenario.geometry import load_geometry

        geometry = load_geometry(model)
    source = open_input(trace, block_size, tokenizer, on_error)
    with source.bar.shown("reading"):
        report = trace_info(source.trace, page_size)
    if as_json:
        import json

        numbers = report.as_dict()
        if geometry is not None:
            numbers["kv_bytes_per_token"] = geometry.kv_bytes_per_token
        json.dump(numbers, sys.stdout, indent=2)
        print()
    else:
        from cli.trace_table import print_info

        print_info(report, geometry)


@_app.command()
def convert(
    trace: TraceArgument,
    out: OutArgument,
    to: ToOption = "hicache",
    out_block_size: Annotated[
        int | None,
        typer.Option(
            "--out-block-size",
            "--block-size",
            metavar="TOKENS",
            help="Tokens of one id of OUT, for mooncake and bailian. [mooncake: 512, bailian: 16]",
        ),
    ] = None,
    trace_block_size: OtherTraceBlockOption = None,
    tokenizer: TokenizerOption = "",
    on_error: OnErrorOption = "stop",
    force: ForceOption = False,
) -> None:
    """Write a trace in another format, and say before what that loses.

    "hicache" holds everything that any format says. TRACE is read twice, first to see what will be
    lost; standard input can be read only once: then what may be lost is said.

    Example: hicache trace convert sharegpt.json talk.jsonl.gz --tokenizer tokenizer.json
    """
    writer = writer_of(to, block_tokens=out_block_size)
    check_out(out, trace, force=force)
    source = open_input(trace, trace_block_size, tokenizer, on_error)
    save(source.trace.stream, writer, out, source)


@_app.command("slice")
def slice_(
    trace: TraceArgument,
    out: OutArgument,
    requests: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Requests A to B - 1, counted from 0; ':B' and 'A:' too."),
    ] = None,
    from_s: Annotated[
        float | None,
        typer.Option("--from", metavar="SECONDS", help="From so long after the first request."),
    ] = None,
    to_s: Annotated[
        float | None, typer.Option("--to", metavar="SECONDS", help="Before so long after it.")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(metavar="N", help="The first N sessions to appear.")
    ] = None,
    every: Annotated[
        int | None, typer.Option(metavar="K", help="One in K sessions (or requests of none).")
    ] = None,
    first: Annotated[
        int | None, typer.Option(metavar="N", help="The first N requests of what is left.")
    ] = None,
    whole: Annotated[
        str,
        typer.Option(
            metavar="sessions|rows",
            help="Cut through sessions, or keep those that begin within to their end.",
        ),
    ] = "rows",
    to_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help=f"Format of OUT: {_FORMATS}. [Mooncake's and Azure's own; else hicache]",
        ),
    ] = None,
    block_size: TraceBlockOption = None,
    tokenizer: TokenizerOption = "",
    on_error: OnErrorOption = "stop",
    force: ForceOption = False,
) -> None:
    """Cut out a part of a trace, and say its SHA-256. All options given must hold.

    Example: hicache trace slice trace.jsonl hour.jsonl.gz --from 3600 --to 7200 --whole sessions
    """
    from traces.slices import Cut, slice_rows

    cut: dict[str, Any] = {
        "requests": _range(requests),
        "from_s": from_s,
        "to_s": to_s,
        "sessions": sessions,
        "every": every,
        "first": first,
        "whole": whole,
    }
    Cut(**cut)  # refuses bad values before anything is read
    check_out(out, trace, force=force)
    source = open_input(trace, block_size, tokenizer, on_error)
    writer, features = _writer_of_part(source.trace, to_format)
    save(lambda: slice_rows(source.trace.stream(), **cut), writer, out, source, features)


def _writer_of_part(trace: Trace, to_format: str | None) -> tuple[TraceWriter, Features | None]:
    """Of the format asked for; or the trace's own, if that holds all of its traces; or hicache.

    Also what the rows have that the format could lose, where that is known: nothing.
    """
    features = None
    if to_format is None:
        is_kept = trace.format == "azure" or (trace.format == "mooncake" and trace.layout.timed)
        to_format = trace.format if is_kept else "hicache"
        features = Features()
    own_blocks = to_format == trace.format and to_format in ("mooncake", "bailian")
    block_tokens = trace.block_tokens if own_blocks and trace.block_tokens > 1 else None
    return writer_of(to_format, block_tokens=block_tokens), features


def _range(text: str | None) -> tuple[int, int | None] | None:
    if text is None:
        return None
    start, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return int(start or 0), int(end) if end else None
    except ValueError:
        raise InputError(f"--requests is {text!r}: it must be like 100:200, :200 or 100:") from None


@_app.command()
def anonymize(
    trace: TraceArgument,
    out: OutArgument,
    salt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="The same salt gives the same ids, for several files that share. [random]",
        ),
    ] = None,
    out_block_size: Annotated[
        int | None,
        typer.Option(
            "--out-block-size",
            "--block-size",
            metavar="TOKENS",
            help="Tokens of one id of OUT. [as TRACE's blocks, or 64]",
        ),
    ] = None,
    keep_recorded: Annotated[
        bool,
        typer.Option(
            "--keep-recorded", help="Keep how many tokens the recorded server found in its cache."
        ),
    ] = False,
    to: ToOption = "hicache",
    trace_block_size: OtherTraceBlockOption = None,
    tokenizer: TokenizerOption = "",
    on_error: OnErrorOption = "stop",
    force: ForceOption = False,
) -> None:
    """Turn texts and token ids into block ids that keep the sharing and nothing else.

    Ids are salted hashes: without the salt, which is thrown away unless given, no guessed text can
    be tested against them. Names of sessions become numbers, times start at 0. What can still be
    seen is said in the end.

    Example: hicache trace anonymize calls.jsonl share-me.jsonl.gz --tokenizer tokenizer.json
    """
    from traces.anonymize import anonymize as anonymous
    from traces.anonymize import what_remains

    # The same in each pass.
    salt_bytes = _salt(salt)
    check_out(out, trace, force=force)
    source = open_input(trace, trace_block_size, tokenizer, on_error)

    def hidden() -> RowStream:
        return anonymous(
            source.trace.stream(),
            salt=salt_bytes,
            block_tokens=out_block_size,
            recorded="kept" if keep_recorded else "left out",
        )

    anonymized = hidden()
    layout = anonymized.layout
    blocks = layout.block_tokens if to in ("mooncake", "bailian") and layout.has_ids else None
    features = save(hidden, writer_of(to, block_tokens=blocks), out, source)
    say(out, f"what can still be seen: {what_remains(anonymized, features)}")
    if salt is not None:
        say(out, "whoever has the salt can test whether a prompt starts with a text they guess")


def _salt(text: str | None) -> bytes:
    if text is None:
        import secrets

        return secrets.token_bytes(32)
    return text.encode("utf-8", "surrogateescape")


_generate = typer.Typer(
    cls=WorkloadGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    subcommand_metavar="WORKLOAD OUT [OPTIONS]...",
)


@_generate.callback()
def generate() -> None:
    """Write a seeded trace of a published workload; the same options give the same bytes.

    hicache trace generate WORKLOAD --help lists a workload's options with defaults and ranges.

    Example: hicache trace generate multi-turn talk.jsonl.gz --clients 64 --rounds 8
    """


_app.add_typer(_generate, name="generate")
