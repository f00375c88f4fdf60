"""`hicache compare-metrics`: what a server counted beside what was predicted."""

from __future__ import annotations

from typing import Annotated

import typer


def compare_metrics(
    result: Annotated[str, typer.Argument(help="Result folder of a replay.")],
    metrics: Annotated[
        str, typer.Argument(help="What the server's /metrics gave, saved; '-': standard input.")
    ],
    since: Annotated[
        str | None, typer.Option(help="An earlier scrape; only what came after it counts.")
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="NAME=VALUE", help="Only series with this label; repeatable."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, not as a table.")] = False,
) -> None:
    """Lay a Prometheus scrape of a real SGLang server beside the prediction.

    Example: curl -s localhost:30000/metrics > after.txt; hicache compare-metrics results/mine
    after.txt --since before.txt --label model_name=Qwen3-8B
    """
    from report.compare_metrics import compare, json_text, table_lines
    from report.prometheus import read_scrape
    from scenario.results import load_result

    predicted = load_result(result)
    later = read_scrape(metrics)
    earlier = None if since is None else read_scrape(since)
    rows = compare(predicted, later, earlier, labels or [])
    if as_json:
        print(json_text(rows))
        return
    for line in table_lines(rows):
        print(line)
