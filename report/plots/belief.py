"""The cost model's belief against the truth, decision by decision, and what the choices lost.

`table`: a row a decision, in order, as `hicache learning` makes it: `recompute_believed_ms` and
`_true_ms`, the same of `h2d` and `s2h`, `regret_ms`, `right`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from report.plots.style import EDGE, LINES, line_style, new_figure, say_empty, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of pandas, which has no types that a checker could use.
DataFrame = Any

_LABELS = {"recompute": "computing again", "h2d": "L2 to L1", "s2h": "L3 to L2"}


def belief_against_truth(
    table: DataFrame, title: str = "Belief against truth", settled_at: int | None = None
) -> Figure:
    """Belief over truth at each decision; below, the regret of the choices, added up.

    `settled_at`: the decision, from 0, from which on choices were right.
    """
    from matplotlib.ticker import FormatStrFormatter

    with styled():
        figure, (above, below) = new_figure(7.2, 5.6, rows=2)
        if not len(table):
            say_empty(above, "the policy was never asked")
            say_empty(below, "")
            return figure
        at = range(1, len(table) + 1)
        for place, (name, label) in enumerate(_LABELS.items()):
            believed = table[f"{name}_believed_ms"].to_numpy(float, na_value=float("nan"))
            true = table[f"{name}_true_ms"].to_numpy(float, na_value=float("nan"))
            if (true == true).any():  # there is an L3  # noqa: PLR0124
                above.plot(at, believed / true, label=label, **line_style(place))
        above.axhline(1.0, color=EDGE, linewidth=1)
        above.set_yscale("log")
        for set_form in (above.yaxis.set_major_formatter, above.yaxis.set_minor_formatter):
            set_form(FormatStrFormatter("%g"))
        above.set(ylabel="believed / true", title=title)
        above.legend()
        sums: list[float] = table["regret_ms"].cumsum().tolist()
        below.plot(at, sums, color=LINES[4], label="regret so far")
        right = table["right"].tolist()
        wrong = [place for place, good in zip(at, right, strict=True) if not good]
        if wrong:
            below.scatter(
                wrong, [sums[place - 1] for place in wrong], color=LINES[4], s=12,
                label="a wrong choice",
            )  # fmt: skip
        if settled_at is not None:
            for axes in (above, below):
                axes.axvline(settled_at + 1, color=EDGE, linewidth=1, linestyle=":")
        below.set(xlabel="decision", ylabel="ms of GPU or link time")
        below.legend()
    return figure
