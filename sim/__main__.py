"""`python -m sim replay SCENARIO`: a replay without the `hicache` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hicache.errors import HiCacheError
from scenario.load import parse_assignments
from sim.run_command import INTERRUPTED, run_replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and replay; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sim", description="Replay request traces on the simulated machine."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("replay", help="replay the trace of a scenario file")
    verb.add_argument("scenario", help="scenario file (TOML); its keys: docs/scenario.md")
    verb.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments",
        help="override a key of the scenario, as in --set restore.policy=always",
    )  # fmt: skip
    verb.add_argument("--out", help="result folder (default: results/TRACE-DIGEST)")
    verb.add_argument("--timeline", action="store_true", help="also write timeline.json")
    options = parser.parse_args(arguments)
    try:
        return run_replay(
            options.scenario,
            parse_assignments(options.assignments),
            out=options.out,
            timeline=options.timeline,
        )
    except HiCacheError as error:
        print(f"hicache: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: no result was written", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
