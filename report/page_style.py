"""How a report looks and what it does by itself: its style sheet and its script.

Colours of texts have a contrast of at least 4.5 to what is behind them (WCAG 2.2, 1.4.3; a test
computes them). Wide tables scroll in their own box, so that the page never does at a phone's width.
The script sorts and filters one table and asks nobody for anything.
"""

from __future__ import annotations

# name: colour of a text, and of what it stands on.
TEXT_COLOURS = {
    "text": ("#1a1a1a", "#ffffff"),
    "muted": ("#555555", "#ffffff"),
    "link": ("#0b57a4", "#ffffff"),
    "good": ("#006238", "#ffffff"),
    "bad": ("#a40000", "#ffffff"),
    "code": ("#1a1a1a", "#f3f3f3"),
    "head": ("#1a1a1a", "#eef2f6"),
    "warning": ("#4a3300", "#fff4d6"),
}

_VARIABLES = "".join(
    f"--{name}: {colours[0]}; --{name}-back: {colours[1]}; "
    for name, colours in TEXT_COLOURS.items()
)

CSS = (
    f":root {{ {_VARIABLES}color-scheme: light; }}"
    + """
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 0 1rem 4rem;
       color: var(--text); background: var(--text-back); overflow-wrap: break-word; }
a { color: var(--link); }
a.skip { position: absolute; left: -100vw; background: var(--text-back); padding: .5rem; }
a.skip:focus { left: 0; z-index: 1; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 1.5rem 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid #8a8a8a; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; }
.muted, figcaption, caption { color: var(--muted); font-size: .9rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; padding: 0; }
nav a { display: inline-block; padding: .3rem 0; }
.verdict { font-size: 1.1rem; font-weight: 600; max-width: 52rem; }
.scroll { overflow-x: auto; margin: .5rem 0 1.2rem; max-width: 100%; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .2rem; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap;
         border-bottom: 1px solid #dddddd; }
thead th { background: var(--head-back); color: var(--head); border-bottom: 1px solid #8a8a8a;
           vertical-align: bottom; }
tbody th, th:first-child, td:first-child, td.text, th.text { text-align: left; }
tbody th { font-weight: 400; }
td.wrap { white-space: normal; min-width: 16rem; text-align: left; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0;
            padding: .35rem .2rem; cursor: pointer; white-space: nowrap; }
th button::after { content: "\\2195"; padding-left: .3rem; opacity: .7; }
th[aria-sort="ascending"] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort="descending"] button::after { content: "\\2193"; opacity: 1; }
.requests { max-height: 36rem; overflow: auto; }
.requests thead th { position: sticky; top: 0; }
label { display: inline-block; margin: .4rem 0; }
input { font: inherit; padding: .3rem .5rem; border: 1px solid #6b6b6b; border-radius: 3px;
        max-width: 100%; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr));
           gap: 1rem; }
figure { margin: 0; min-width: 0; } figure svg { width: 100%; height: auto; display: block; }
pre { background: var(--code-back); color: var(--code); padding: .8rem; overflow-x: auto;
      font-size: .85rem; max-width: 100%; }
.warning { background: var(--warning-back); color: var(--warning); padding: .5rem .8rem;
           margin: .4rem 0; max-width: none; }
details > summary { cursor: pointer; padding: .3rem 0; }
@media (max-width: 40rem) { body { padding: 0 .7rem 3rem; } h1 { font-size: 1.35rem; } }
@media print { nav, .skip, .tools { display: none; } .requests { max-height: none; }
               th button::after { content: ""; } }
"""
)

# A header's button sorts by its column: numbers by `data-v`, texts as they read; again: the other
# way round. Rows without a value stay last. What was done is said to a screen reader, too.
SCRIPT = """
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const said = document.getElementById(table.dataset.status);
  const rows = [...body.rows];
  const value = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.v === undefined) return cell.textContent;
    return cell.dataset.v === "" ? null : Number(cell.dataset.v);
  };
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach(each => each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      rows.sort((left, right) => {
        const a = value(left, column), b = value(right, column);
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0);
      });
      body.append(...rows);
      said.textContent = "sorted by " + button.textContent + ", " +
        (down ? "largest first" : "smallest first");
    });
  });
  const filter = document.getElementById(table.dataset.filter);
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    said.textContent = shown + " of " + rows.length + " rows shown";
  });
}
"""
