"""`python -m traces`: makes a trace, or says what is in one. Thin: parses, calls, prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields

from hicache.errors import InputError
from traces.generator import RANGES, AgentOptions, write_trace
from traces.progress import ProgressBar
from traces.reader import open_trace

USUAL_PAGE_TOKENS = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code: 0, or 2 after one line on what input is wrong."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "generate":
            _generate(options)
        else:
            _facts(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m traces", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    generate = commands.add_parser(
        "generate",
        help="write a seeded trace of multi-turn agents in Mooncake's format",
        description="Write a seeded trace of multi-turn agents in Mooncake's format. "
        "What each option means: data/README.md.",
    )
    generate.add_argument("path", help="where to write; compressed if it ends in .gz")
    for each in fields(AgentOptions):
        least, most = RANGES[each.name]
        generate.add_argument(
            *_flags(each.name),
            type=int if each.type == "int" else float,
            default=each.default,
            metavar="N",
            help=f"default {each.default}; {least} to {most}",
        )

    facts = commands.add_parser(
        "facts", help="read a trace, check every line, and say what is in it"
    )
    facts.add_argument("path", help='a trace, plain, gzip or zstd; "-" is standard input')
    facts.add_argument(
        "--page-size",
        type=int,
        metavar="TOKENS",
        help=f"default: the trace's block size, {USUAL_PAGE_TOKENS} where it has none",
    )
    facts.add_argument("--pages", choices=("full", "partial"), default="full")
    facts.add_argument(
        "--block-size", type=int, metavar="TOKENS", help="default: the format's own or usual one"
    )
    return parser


def _flags(name: str) -> list[str]:
    flags = [f"--{name.replace('_', '-')}"]
    # What `facts` and `hicache replay` call it.
    return [*flags, "--block-size"] if name == "block_tokens" else flags


def _generate(options: argparse.Namespace) -> None:
    if options.path == "-":
        raise InputError("generate writes a file, not standard output: give its path instead of -")
    names = [each.name for each in fields(AgentOptions)]
    num_requests = write_trace(
        AgentOptions(**{name: getattr(options, name) for name in names}), options.path
    )
    print(f"{options.path}: {num_requests:,} requests")


def _facts(options: argparse.Namespace) -> None:
    with ProgressBar("reading") as progress:
        trace = open_trace(options.path, block_tokens=options.block_size, progress=progress)
        page_size = options.page_size
        if page_size is None:
            page_size = trace.block_tokens if trace.block_tokens > 1 else USUAL_PAGE_TOKENS
        for _ in trace.requests(page_size, options.pages):
            pass
    facts = trace.facts
    table = (
        ("format", trace.format),
        ("requests", f"{facts.requests:,} in {facts.duration_s:,.0f} s"),
        ("prompt tokens", f"{facts.prompt_tokens:,}, the longest {facts.longest_prompt_tokens:,}"),
        ("output tokens", f"{facts.output_tokens:,}"),
        (
            "blocks",
            f"{facts.blocks:,} of {trace.block_tokens} tokens, {facts.unique_blocks:,} unique",
        ),
        ("pages", f"{facts.prompt_pages:,} of {page_size} tokens, {options.pages}"),
        (
            "ceiling",
            f"{facts.ideal_tokens / facts.prompt_tokens:.4f} of tokens, "
            f"{facts.ideal_pages / max(1, facts.prompt_pages):.4f} of pages "
            "(infinite cache, no hit cap)",
        ),
        ("sha256", facts.sha256),
        *(("warning", warning) for warning in facts.warnings),
    )
    for name, value in table:
        print(f"{name:14} {value}")


if __name__ == "__main__":
    sys.exit(main())
