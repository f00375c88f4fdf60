"""A comparison's folder: complete or not there, and it replaces nothing but an older comparison.

    compare.json     verdicts, differences with intervals, where they come from
    compare.toml     the study, to repeat it: hicache compare --file compare.toml
    pairs.parquet    a row for each pair of requests: `base`, `other`, `trace`, what each run made
    runs/TRACE/VARIANT   the result folder of each replay
    plots/           optional: the figures as PNG

Every byte follows from the comparison. Refuses to compute.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hicache.errors import InputError
from scenario.parquet import ParquetWriter
from scenario.results import summary_text, write_result
from sim.compare import Comparison
from sim.compare_pairs import LABELS
from sim.compare_variants import study_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of pandas, which has no types that a checker could use.
DataFrame = Any

COMPARE, STUDY, PAIRS, RUNS, PLOTS = (
    "compare.json", "compare.toml", "pairs.parquet", "runs", "plots",
)  # fmt: skip
_OURS = {COMPARE, STUDY, PAIRS, RUNS, PLOTS}
_WHOLE = ("request", "arrival_ns", "prompt_tokens", "hit_change_tokens")


def check_folder(folder: str) -> None:
    """Raises InputError if a comparison must not be written to `folder`; ask before a long run."""
    place = os.path.realpath(folder)
    if os.path.isdir(place):
        names = set(os.listdir(place))
        foreign = sorted(names - _OURS) or (sorted(names) if names and COMPARE not in names else [])
        if foreign:
            raise InputError(
                f"{folder} holds {foreign[0]}, which belongs to no comparison: it is not replaced; "
                "choose another folder or empty it"
            )
        return
    if os.path.lexists(place):
        raise InputError(f"{folder} is a file; a comparison is a folder")
    above = os.path.dirname(place)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise InputError(f"{folder}: {above} is a file, so no folder can be made in it")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: {above} cannot be written to")


def write_comparison(
    folder: str, found: Comparison, figures: Mapping[str, Figure] | None = None
) -> str:
    """Write the folder; returns its absolute path. Raises InputError where that cannot be."""
    check_folder(folder)
    place = os.path.realpath(folder)
    parent, name = os.path.split(place)
    unfinished = os.path.join(parent, f".{name}.{os.getpid()}.unfinished")
    aside = f"{unfinished}.old"
    try:
        os.makedirs(unfinished)
        _write(os.path.join(unfinished, COMPARE), summary_text(found.document()))
        _write(os.path.join(unfinished, STUDY), study_text(found.study))
        ParquetWriter().write(pair_columns(found), os.path.join(unfinished, PAIRS))
        for trace, variant, leg in runs(found):
            outcome = leg.outcome
            where = os.path.join(unfinished, RUNS, trace, variant)
            write_result(
                where, outcome.summary, outcome.columns, outcome.scenario_text,
                extras=outcome.extras,
            )  # fmt: skip
        if figures:
            save_figures(os.path.join(unfinished, PLOTS), figures)
        if os.path.isdir(place):
            os.rename(place, aside)
        try:
            os.rename(unfinished, place)
        except BaseException:
            if os.path.isdir(aside):
                os.rename(aside, place)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(f"{folder}: {error.strerror or error}") from None
        raise
    return place


def runs(found: Comparison) -> list[tuple[str, str, Any]]:
    """Each leg with the names of its trace and variant, as its folder is called."""
    count = len(found.study.variants)
    return [
        (found.names[place // count], leg.variant.name, leg) for place, leg in enumerate(found.legs)
    ]


def pair_columns(found: Comparison) -> dict[str, Any]:
    """pairs.parquet: the pairs of every variant and trace, one below the other."""
    import pandas

    parts: list[DataFrame] = []
    for each in found.contrasts:
        if each.trace in found.names:
            rows = each.pairs.drop(columns=["unit", "gap_ns_base", "gap_ns_other", "turn"])
            rows.insert(0, "base", each.base)
            rows.insert(1, "other", each.other)
            parts.append(rows)
    table = pandas.concat(parts, ignore_index=True)
    for side in ("base", "other"):
        table[f"source_{side}"] = [LABELS[each] for each in table[f"source_{side}"]]
    columns: dict[str, Any] = {}
    for name in table.columns:
        values = table[name]
        if name in _WHOLE or name.endswith(("_tokens_base", "_tokens_other")):
            columns[name] = values.astype("int64").to_numpy()
        elif values.dtype == object or str(values.dtype) == "str":
            columns[name] = values.tolist()
        else:
            columns[name] = values.astype(float).to_numpy()
    return columns


def save_figures(folder: str, figures: Mapping[str, Figure]) -> None:
    """Each figure as folder/NAME.png, alike in every run."""
    from report.plots.style import save

    os.makedirs(folder)
    for name, figure in figures.items():
        save(figure, os.path.join(folder, f"{name}.png"))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as opened:
        opened.write(text)
