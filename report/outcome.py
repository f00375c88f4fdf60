"""What a run leaves, before it is written: a simulated one and a real one the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from scenario.columns import Columns


@dataclass(slots=True)
class Outcome:
    """`columns` are those of requests.parquet, `extras` further files. `interrupted`: it holds the
    requests that were done until then; `cut_off`: of a record that ended, and where.
    """

    summary: dict[str, object]
    columns: Columns
    scenario_text: str
    extras: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    cut_off: str = ""
