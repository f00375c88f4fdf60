"""The `hicache` command: one Typer application, thin; what it calls is imported where it is
needed.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from cli.calibrate import calibrate
from cli.compare import compare
from cli.compare_metrics import compare_metrics
from cli.curve import curve
from cli.plan import plan
from cli.preset import preset_app
from cli.profile import profile_app
from cli.report import report
from cli.streams import open_closed_streams
from cli.sweep import sweep
from cli.trace import trace_app
from cli.validate import learning, validate
from hicache import __version__
from hicache.compiled import in_use


class _Commands(TyperGroup):
    """Ctrl-C that no command made anything of: it says what that means for the result."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted: no result was written", file=sys.stderr)
            raise typer.Exit(_INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="What a hierarchical KV cache (GPU, host memory, storage) will do for your LLM traffic.",
)

_SIZES = "40GiB, 40GB, 8000000tokens, 6000pages, 2x (times L1) or 0 (none)"


# What a shell reports of a program that SIGINT, or SIGPIPE, ended.
_INTERRUPTED = 130
_PIPE_CLOSED = 141


def _version(wanted: bool) -> None:
    if wanted:
        engine = "compiled" if in_use() else "interpreted"
        print(f"hicache {__version__} ({engine} engine)")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Predict hit rates, TTFT and throughput of a hierarchical KV cache from a request trace."""


@app.command()
def replay(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="Request trace in any known format, plain, .gz or .zst; '-' is standard input."
        ),
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Scenario file (TOML); options given here override it.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model, as Qwen3-8B, or a Hugging Face config.json. [Qwen3-8B]"),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Machine: a known name or a profile's file. [nvidia-h200]")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Rules of the cache, as sglang-0.5.20: hicache preset list. [mini-hicache]"
        ),
    ] = None,
    sglang_args: Annotated[
        str | None,
        typer.Option(
            "--sglang-args",
            metavar="TEXT",
            help="The arguments of an SGLang server, as one text: docs/sglang.md.",
        ),
    ] = None,
    page_size: Annotated[
        int | None,
        typer.Option(help="Tokens of a page: divides the trace's blocks, or joins them. [64]"),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="Tokens of one hash id, in formats that do not say. [Mooncake: 512]"),
    ] = None,
    l1: Annotated[
        str | None,
        typer.Option(
            help="GPU tier: 40GiB, 40GB, 8000000tokens or 6000pages. [what the weights leave free]"
        ),
    ] = None,
    l2: Annotated[str | None, typer.Option(help=f"Host memory tier: {_SIZES}. [2x]")] = None,
    l3: Annotated[str | None, typer.Option(help=f"Storage tier: {_SIZES}. [0]")] = None,
    policy: Annotated[
        str | None, typer.Option(help="cost, meet, always, never or threshold. [cost]")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="Arrival times are divided by it: 0.5 is half rate. [1]")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests (in a closed loop: sessions) a second, not the trace's own times."
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(help="trace, at_once, poisson or uniform. [poisson with --rate]"),
    ] = None,
    closed_loop: Annotated[
        bool,
        typer.Option(
            "--closed-loop", help="A later turn of a session waits for the answer before it."
        ),
    ] = False,
    clients: Annotated[
        int | None, typer.Option(help="Closed loop with this many sessions at once. [no limit]")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(help="Closed loop with this many requests at once. [no limit]")
    ] = None,
    barrier: Annotated[
        bool,
        typer.Option("--barrier", help="Closed loop in rounds: all sessions end a turn first."),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of whatever is random. [0]")] = None,
    untimed: Annotated[
        bool,
        typer.Option(
            "--untimed", help="No operation takes time; requests one at a time in file order."
        ),
    ] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="A Hugging Face tokenizer.json, for traces of texts."),
    ] = None,
    on_error: Annotated[
        str | None,
        typer.Option(help="Malformed rows: stop at the first, or skip and list them. [stop]"),
    ] = None,
    prefix_share: Annotated[
        float | None,
        typer.Option(
            help="For logs of lengths only: this part of each prompt is made up to be shared."
        ),
    ] = None,
    prefix_groups: Annotated[
        int | None, typer.Option(help="Groups that share it, drawn by Zipf's law. [16]")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of docs/scenario.md; repeatable."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Result folder. [results/TRACE-DIGEST]")] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Also write timeline.json for ui.perfetto.dev.")
    ] = False,
    save_record: Annotated[
        bool, typer.Option("--save-record", help="Also keep the record of all completions.")
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(help="Result folder whose record is replayed, decision for decision."),
    ] = None,
    by_session: Annotated[
        bool, typer.Option("--by-session", help="Also print a row for each of the ten longest.")
    ] = False,
    interval: Annotated[
        bool,
        typer.Option("--interval", help="Also what the profile's spread means for the prediction."),
    ] = False,
    draws: Annotated[
        int, typer.Option(help="Replays that an interval is made from. [16]", show_default=False)
    ] = 16,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Also write what the server's /metrics would give."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the result's folder, no table.")
    ] = False,
) -> None:
    """Replay a request trace and predict hit rates by tier, TTFT, TPOT and throughput.

    TRACE may be in any format of docs/traces.md (Mooncake, RAGPulse, Claude Code sessions, Qwen
    Bailian, token ids, SGLang dumps, ShareGPT, OpenAI logs, Azure and more), plain, .gz or .zst;
    the format is told from the content, and '-' reads standard input.

    Example: hicache replay trace.jsonl --model Qwen3-8B --profile nvidia-h200 --l2 2x --l3 10x
    """
    from scenario.load import parse_assignments
    from sim.run_command import run_replay

    overrides: dict[str, object] = parse_assignments(assignments or [])
    given: dict[str, Any] = {
        "trace.path": trace,
        "model.name": model,
        "machine.profile": profile,
        "preset": preset,
        "tiers.page_size_tokens": page_size,
        "trace.block_tokens": block_size,
        "tiers.l1": l1,
        "tiers.l2": l2,
        "tiers.l3": l3,
        "restore.policy": policy,
        "trace.speed": speed,
        "trace.tokenizer": tokenizer,
        "trace.on_error": on_error,
        "trace.prefix_share": prefix_share,
        "trace.prefix_groups": prefix_groups,
        "load.rate": rate,
        "load.arrivals": arrivals,
        "load.loop": "closed" if closed_loop or clients or parallel or barrier else None,
        "load.clients": clients,
        "load.parallel": parallel,
        "load.barrier": barrier or None,
        "seed": seed,
        "mode": "untimed" if untimed else None,
    }
    overrides |= {key: value for key, value in given.items() if value is not None}
    notes: tuple[str, ...] = ()
    if sglang_args is not None:
        from scenario.sglang_args import with_server_args

        overrides, notes = with_server_args(sglang_args, scenario, overrides)
    code = run_replay(
        scenario,
        overrides,
        notes=notes,
        prometheus=prometheus,
        out=out,
        timeline=timeline,
        save_record=save_record,
        record_of=record,
        show=not quiet,
        by_session=by_session,
        draws=draws if interval else 0,
    )
    raise typer.Exit(code)


@app.command("run")
def run_live(
    scenario: Annotated[str, typer.Argument(help="Scenario file (TOML): docs/scenario.md.")],
    device: Annotated[
        str, typer.Option(help="cuda, or cpu: the same code on CPU tensors, slow. [cuda]")
    ] = "cuda",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of docs/scenario.md; repeatable."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Result folder. [results/run-TRACE]")] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the result's folder, no table.")
    ] = False,
) -> None:
    """Replay a trace on this machine's GPU: real transfers, a real L3 file, a real model.

    It takes as long as the trace does (trace.speed makes it shorter), writes the same result
    folder as a replay and the record of completions; `hicache replay --record FOLDER` repeats it
    anywhere, decision for decision. Needs the extra `hw` (torch, triton, transformers).

    Example: hicache run scenario.toml --set tiers.l1=8GiB --set hw.l3_backend=direct
    """
    from hicache.errors import InputError
    from scenario.load import parse_assignments

    if device not in ("cuda", "cpu"):
        raise InputError(f'--device is "{device}": it must be cuda or cpu')
    try:
        from hw.run_command import run_live_scenario
    except ImportError as error:
        raise InputError(f"hicache run needs {error.name}: pip install 'hicache-lab[hw]'") from None
    overrides = parse_assignments(assignments or [])
    code = run_live_scenario(scenario, overrides, device=device, out=out, show=not quiet)
    raise typer.Exit(code)


app.command()(validate)
app.command()(learning)
app.command()(curve)
app.command()(compare)
app.command()(report)
app.command()(sweep)
app.command()(plan)
app.command()(calibrate)
app.add_typer(trace_app, name="trace")
app.command("compare-metrics")(compare_metrics)
app.add_typer(profile_app, name="profile")
app.add_typer(preset_app, name="preset")


def main() -> None:
    """Run the command line; errors of the user's are one line and exit code 2."""
    # A replay makes hardly any cycles, and a process this short need not look for them.
    gc.disable()
    open_closed_streams()
    code = run()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except OSError as error:
        if code != 2:  # else it has been said
            code = _no_room(error)
    # Its workers' folders are removed at an end like any other.
    if "joblib" in sys.modules:
        raise SystemExit(code)
    # All is written: taking a million objects apart one by one would only take time.
    os._exit(code)


def run() -> int:
    """The same without ending the process: returns the exit code."""
    from hicache.errors import HiCacheError

    try:
        # Its errors are ours to print, and what a command returns is of no interest.
        ended = app(standalone_mode=False)
    except HiCacheError as error:
        print(f"hicache: error: {error}", file=sys.stderr)
        return 2
    except click.ClickException as error:
        return _refused(error)
    except BrokenPipeError:
        return _PIPE_CLOSED
    except OSError as error:
        return _no_room(error)
    except SystemExit as ending:
        # So rich ends where its table is not wanted any more.
        if isinstance(ending.__context__, BrokenPipeError):
            return _PIPE_CLOSED
        return _code_of(ending)
    return ended if isinstance(ended, int) else 0


def _no_room(error: OSError) -> int:
    """A disk that is full where no command looks: under what is printed, most often."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    where = f"{error.filename}: " if error.filename else ""
    print(f"hicache: error: {where}{error.strerror}", file=sys.stderr)
    return 2


def _refused(error: click.ClickException) -> int:
    """Say in one line what is wrong with what was typed; without any command, all help."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    # Older versions of click print the help themselves.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return error.exit_code
    reason = " ".join(error.format_message().split()).rstrip(".")
    where = f" ({context.command_path} --help)" if context is not None else ""
    print(f"hicache: error: {reason}{where}", file=sys.stderr)
    return 2


def _code_of(ending: SystemExit) -> int:
    if ending.code is None or isinstance(ending.code, int):
        return ending.code or 0
    print(ending.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
