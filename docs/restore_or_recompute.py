"""Makes the tables and the plot of docs/restore-or-recompute.md from a measurement.

    python docs/restore_or_recompute.py [RESULT.json]      with the `dev` extra

By default from the latest `benchmarks/hw/results/*/restore_or_recompute.json`. A test holds that
the page says what that file says; it does not make the plot again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
PAGE = DOCS / "restore-or-recompute.md"
PLOT = DOCS / "img" / "restore_or_recompute.png"
RESULTS = "benchmarks/hw/results/*/restore_or_recompute.json"
BEGIN, END = "<!-- made by docs/restore_or_recompute.py -->\n", "<!-- end of what is made -->"
BACKENDS = ("auto", "direct", "staged", "zero_copy")
TIERS = {"L2": (), "L3 cold": ("cold",), "L3 warm": ("warm",)}
PARTS = (
    "tokens", "restored", "MiB", *BACKENDS, "L3 cold", "L3 dropped", "L3 warm", "rest"
)  # fmt: skip


def latest() -> Path | None:
    """The newest committed measurement; None while there is none."""
    return max(REPOSITORY.glob(RESULTS), default=None)


def filled(page: str, result: dict[str, Any]) -> str:
    """The page with its made part made anew."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin, f"{PAGE.name} has no part to be made"
    assert end, f"{PAGE.name}: its made part has no end"
    return f"{head}{BEGIN}{body(result)}\n{END}{tail}"


def restore_ms(row: dict[str, Any], tier: str) -> float:
    """Milliseconds to the first token by way of a restore from `tier`."""
    reads = sum(row["read_s"][store] for store in TIERS[tier])
    return (reads + row["copy_s"]["auto"] + row["rest_s"]) * 1e3


def body(result: dict[str, Any]) -> str:
    """Every table, as Markdown."""
    rows = result["rows"]
    parts = [
        f"{result['machine']}, {result['model']} with random weights, pages of "
        f"{result['page_tokens']} tokens, {result['date']}, by",
        f"```sh\n{result['command']}\n```",
        "Milliseconds to the first token; in brackets how many times faster than computing:",
        _table(
            ("tokens", "computed", *TIERS),
            [
                (
                    f"{row['tokens']:,}",
                    f"{row['recompute_s'] * 1e3:.1f}",
                    *(_beside(row, tier) for tier in TIERS),
                )
                for row in rows
            ],
        ),
        "Of which, in milliseconds: the copy from L2 to L1 by each back-end, the read from L3 to "
        "L2 (*dropped*: through a page cache that held nothing), and what is left to compute:",
        _table(
            PARTS,
            [_parts(row) for row in rows],
        ),
        "What the policy `cost` chose in the end, and after how many choices it was right for "
        "good:",
        _choices(result["choices"], result["mixed"]),
        "Eight prompts over and over, all waiting: seconds for those that count (mean TTFT):",
        _table(
            ("tokens", "tier", "requests", "never", "always", "cost", "loss"),
            [
                (
                    f"{each['tokens']:,}",
                    each["tier"],
                    str(each["requests"]),
                    *(
                        f"{each['seconds'][p]:.2f} ({each['mean_ttft_s'][p]:.2f})"
                        for p in ("never", "always", "cost")
                    ),
                    f"{each['loss'] * 100:+.1f} %",
                )
                for each in result["rotating"]
            ],
        ),
    ]
    if result["skipped"]:
        parts.append(f"Not measured for lack of time: {'; '.join(result['skipped'])}.")
    return "\n\n".join(parts)


def _beside(row: dict[str, Any], tier: str) -> str:
    restored = restore_ms(row, tier)
    return f"{restored:.1f} ({row['recompute_s'] * 1e3 / restored:.2f})"


def _parts(row: dict[str, Any]) -> tuple[str, ...]:
    copies, reads = row["copy_s"], row["read_s"]
    times = [copies[name] for name in BACKENDS]
    times += [reads[name] for name in ("cold", "dropped", "warm")] + [row["rest_s"]]
    return (
        f"{row['tokens']:,}",
        f"{row['hit_tokens']:,}",
        f"{row['bytes'] / 2**20:,.0f}",
        *(f"{seconds * 1e3:.2f}" for seconds in times),
    )


def _choices(alone: list[dict[str, Any]], mixed: list[dict[str, Any]]) -> str:
    by_key = {(each["tokens"], each["tier"]): each for each in mixed}
    rows: list[tuple[str, ...]] = []
    for each in alone:
        other = by_key.get((each["tokens"], each["tier"]))
        near = " (within 5 %)" if each["near"] else ""
        rows.append(
            (
                f"{each['tokens']:,}",
                each["tier"],
                each["faster"] + near,
                _choice(each),
                _choice(other) if other else "-",
            )
        )
    return _table(("tokens", "tier", "faster", "`cost`", "all lengths in turns"), rows)


def _choice(each: dict[str, Any]) -> str:
    verdict = "" if each["right"] else ", wrong"
    return f"{each['chosen']}{verdict} ({each['choices_until_right']})"


def _table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    text = ("tier", "faster", "`cost`", "all lengths in turns")
    rule = ["---" if name in text else "---:" for name in names]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rule, *rows)).replace(
        f"| {' | '.join(rule)} |", f"|{'|'.join(rule)}|"
    )


def draw(result: dict[str, Any], path: Path) -> None:
    """The plot: milliseconds over tokens, both on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(DOCS / "print.mplstyle")
    rows = result["rows"]
    tokens = [row["tokens"] for row in rows]
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    lines = {"computed": [row["recompute_s"] * 1e3 for row in rows]}
    lines |= {f"from {tier}": [restore_ms(row, tier) for row in rows] for tier in TIERS}
    for (name, values), marker in zip(lines.items(), "osv^", strict=True):
        axes.plot(tokens, values, marker=marker, markersize=4, label=name)
    axes.set(
        xscale="log", yscale="log", xlabel="prompt, tokens", ylabel="time to the first token, ms",
        title=f"{result['model']} on {result['machine']}: compute or restore",
    )  # fmt: skip
    axes.set_xticks(tokens, [f"{each:,}" for each in tokens])
    axes.minorticks_off()
    axes.legend()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Bring the page and its plot up to date."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("result", nargs="?", type=Path, help=f"a measurement; else of {RESULTS}")
    given: Path | None = parser.parse_args().result or latest()
    if given is None:
        parser.error(f"there is no {RESULTS}; name a file")
    if not given.is_file():
        parser.error(f"{given} is no file")
    result = json.loads(given.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
    draw(result, PLOT)
    print(f"{PAGE.relative_to(REPOSITORY)} and {PLOT.relative_to(REPOSITORY)}, from {given}")


if __name__ == "__main__":
    main()
