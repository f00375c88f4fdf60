"""The arguments of `hicache curve`. What it does is imported when it is asked for."""

from __future__ import annotations

from typing import Annotated

import typer

_SIZES = "pages as 6000; or 3000000tokens; or with --model 40GiB"


def curve(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A trace in any known format, plain, .gz or .zst; '-' is standard input.",
        ),
    ],
    page_size: Annotated[
        int,
        typer.Option(
            metavar="TOKENS",
            help="Tokens of a page: divides the trace's blocks, or joins them.",
        ),
    ] = 64,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The curve as JSON: capacity_pages, hit_pages and more; '-' is standard output.",
        ),
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="The curve as a picture, .png or .svg.")
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="SIZE,...",
            show_default=False,
            help=f"Also print the hits of these capacities: {_SIZES}.",
        ),
    ] = "",
    optimum: Annotated[
        str,
        typer.Option(
            metavar="SIZE,...",
            show_default=False,
            help="Also the offline optimum of these capacities, which no policy can beat; the word "
            "'curve' among them draws it over all.",
        ),
    ] = "",
    tiers: Annotated[
        str,
        typer.Option(
            metavar="SIZE,...",
            show_default=False,
            help="Also what tiers of these capacities (L1,L2,L3) hit together.",
        ),
    ] = "",
    relation: Annotated[
        str,
        typer.Option(
            metavar="inclusive|exclusive|other",
            show_default=False,
            help="How they work together: copies of each other, or a page in one tier only; other: "
            "a bound that holds for any. [inclusive]",
        ),
    ] = "",
    pages: Annotated[
        str,
        typer.Option(metavar="full|partial", help="Whether a partly filled last page is cached."),
    ] = "partial",
    hit_cap: Annotated[
        str,
        typer.Option(
            metavar="none|last_token_computed",
            help="The latter: at most prompt - 1 tokens hit, as in every server.",
        ),
    ] = "none",
    outputs: Annotated[
        str,
        typer.Option(
            metavar="dropped|cached",
            help="Whether answers are cached behind their prompts; only with --pages full.",
        ),
    ] = "dropped",
    sample: Annotated[
        float | None,
        typer.Option(
            metavar="PART",
            help="Look at this part of the pages only, as 0.01: an estimate with its error, for "
            "traces whose reuse does not fit memory.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed is another sample.")] = 0,
    model: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Also give capacities in bytes of KV of this model: Qwen3-8B, or a config.json.",
        ),
    ] = "",
    block_size: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Tokens of one hash id, in formats that do not say. [Mooncake: 512]",
        ),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="A Hugging Face tokenizer.json, for traces of texts.",
        ),
    ] = "",
    on_error: Annotated[
        str,
        typer.Option(
            metavar="stop|skip", help="Malformed rows: stop at the first, or leave out and list."
        ),
    ] = "stop",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that this command has not made.")
    ] = False,
) -> None:
    """Say what LRU caches of all sizes would hit, from one pass; and what no policy could beat.

    The curve is that of `hicache replay --preset block-lru --untimed` with one tier, at every size,
    to the page. --optimum gives the bound of Belady's rule, which knows the future: how much a
    better policy could gain, and where more memory is the only way. With a hit cap or cached
    outputs the curve may be off by some pages of capacity: docs/curves.md.

    Example: hicache curve trace.jsonl --page-size 512 --out curve.json --plot curve.png

    Example: hicache curve trace.jsonl --page-size 512 --optimum 6000,12000,curve --plot curve.svg
    """
    from cli.curve_run import CurveArguments, run_curve

    given = CurveArguments(
        trace, page_size, out, plot, at, optimum, tiers, relation, pages, hit_cap, outputs, sample,
        seed, model, block_size, tokenizer, on_error, quiet, force,
    )  # fmt: skip
    raise typer.Exit(run_curve(given))
