"""The page of a report: everything is in it, it is safe and needs nothing; and in a browser."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from chromium import Page

from hicache.errors import InputError
from report.page import page
from report.page_inputs import read_inputs
from report.page_style import TEXT_COLOURS
from scenario.load import load_scenario
from scenario.results import write_result
from sim.compare import Options, compare
from sim.compare_files import write_comparison
from sim.compare_variants import Study, variant_of
from sim.replay import replay

NASTY = "<img src=x onerror=alert(1)> & \"co\" 'q'"
OPTIONS = {"tiers.l1": "4000tokens", "tiers.l2": "2x", "tiers.l3": "8x", "restore.policy": "always"}
# What a page of ours may not hold: anything that would be fetched.
FETCHES = re.compile(r"""(?:src|href|action|xlink:href)=["'](?!#|data:)|@import|url\((?!#|data:)""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result with a timeline, an untimed one, a comparison; sessions have hostile names."""
    place = tmp_path_factory.mktemp("results")
    trace = place / "t.jsonl"
    rows = []
    for number in range(60):
        blocks = [number % 7 * 10 + at for at in range(2 + number % 3)]
        rows.append(
            {"timestamp": 400 * number, "input_length": 512 * len(blocks) - 5, "output_length": 4,
             "hash_ids": blocks}
        )  # fmt: skip
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = OPTIONS | {"trace.path": str(trace)}
    for name, more, timeline in (("timed", {}, True), ("untimed", {"mode": "untimed"}, False)):
        outcome = replay(load_scenario(None, options | more), timeline=timeline)
        columns: dict[str, Any] = dict(outcome.columns)
        columns["session"] = [NASTY if each % 2 else "" for each in range(60)]
        warnings: Any = outcome.summary["warnings"]
        outcome.summary["warnings"] = [*warnings, NASTY]
        text = f"# {NASTY}\n{outcome.scenario_text}"
        write_result(place / name, outcome.summary, columns, text, extras=outcome.extras)
    variants = (variant_of("always"), variant_of("never:restore.policy=never"))
    study = Study((str(trace),), variants, common=OPTIONS)
    write_comparison(str(place / "compared"), compare(study, Options(resamples=100)))
    return place


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    found = read_inputs([str(folder / each) for each in ("timed", "untimed", "compared")])
    return page(found, f"A title {NASTY}")


class Checked(html.parser.HTMLParser):
    """Ids, tags, and that every element is closed where it should be."""

    VOID = frozenset({"meta", "input", "br", "img", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.scripts = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        assert not any(name.startswith("on") for name, _ in attrs), (tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_is_sound_and_names_nothing_twice(text: str) -> None:
    found = Checked(text)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    links = set(re.findall(r'href="#([^"]+)"', text))
    assert links <= set(found.ids)
    assert found.tags.count("script") == found.tags.count("h1") == found.tags.count("main") == 1


def test_what_came_from_files_is_text_and_nothing_else(text: str) -> None:
    assert "<img" not in text
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") > 60


def test_it_fetches_nothing_and_forbids_it(text: str) -> None:
    outside = re.sub(r"<pre.*?</pre>", "", text, flags=re.S)
    outside = re.sub(r'xmlns(?::\w+)?="[^"]*"', "", outside)
    assert FETCHES.search(outside.replace("&lt;img src=", "")) is None
    assert "default-src 'none'" in text
    assert "http" not in outside.replace("http-equiv", "")


def test_it_says_what_the_results_say(text: str, folder: Path) -> None:
    summary = json.loads((folder / "timed" / "summary.json").read_text())
    assert f"{summary['ttft_ms']['p99']:,.1f}" in text
    assert f"{100 * summary['cache_hit_rate']:,.2f}" in text
    verdict = json.loads((folder / "compared" / "compare.json").read_text())["comparisons"][0]
    assert verdict["verdict"] in text
    for caption in ("How busy each device was, timed", "What waited, timed", "gained and lost"):
        assert caption in text
    assert "How busy each device was, always" not in text  # no timeline was kept
    assert text.count("<svg ") == text.count("<figcaption>") >= 12


def test_every_scenario_is_there_to_be_saved(text: str, folder: Path) -> None:
    from urllib.parse import unquote

    saved = [
        unquote(each) for each in re.findall(r'href="data:text/plain;charset=utf-8,([^"]*)"', text)
    ]
    for path in (folder / "timed/scenario.toml", folder / "compared/compare.toml"):
        assert path.read_text() in saved
    assert "hicache compare --file compare.toml" in text
    assert "hicache replay --scenario timed.toml" in text


def test_the_same_results_give_the_same_bytes_and_only_so_many_requests(folder: Path) -> None:
    text, again = (page(read_inputs([str(folder / "timed")]), "t", most_rows=10) for _ in range(2))
    assert text == again
    assert "10 of 60 requests, those of longest TTFT; all stand in requests.parquet" in text
    body = text.partition('id="requests-table"')[2]
    assert body.partition("</table>")[0].count("<tr>") == 11


def test_a_curve_shows_where_the_results_lie(folder: Path, tmp_path: Path) -> None:
    from sim.curve_study import SCHEMA, CurveQuestions, study_curve
    from sim.curve_trace import CurveRules
    from traces.reader import open_trace

    study = study_curve(open_trace(folder / "t.jsonl"), CurveRules(64), CurveQuestions((), (20,)))
    path = tmp_path / "curve.json"
    path.write_text(json.dumps({"schema": SCHEMA, **study.document}))
    text = page(read_inputs([str(folder / "untimed"), str(path)]), "t")
    drawn = text.partition("Hits of a cache of every size")[0]
    assert "optimum, may bypass" in text
    assert drawn
    assert ">untimed</text>" in text


def test_what_is_no_result_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("[")
    (tmp_path / "empty").mkdir()
    old = tmp_path / "old"
    shutil.copytree(folder / "compared", old)
    (old / "compare.json").write_text('{"schema": "hicache compare 9"}')
    cut = tmp_path / "cut"
    shutil.copytree(folder / "timed", cut)
    (cut / "requests.parquet").write_bytes(b"PAR1")
    for name, why in (
        ("a.json", "no curve of hicache curve"),
        ("b.json", "not valid JSON"),
        ("empty", "is no result folder"),
        ("absent", "is no result folder"),
        ("old", "schema 'hicache compare 9'"),
        ("cut", "requests.parquet cannot be read"),
    ):
        with pytest.raises(InputError, match=why) as refused:
            read_inputs([str(tmp_path / name)])
        assert name in str(refused.value)


def test_texts_have_contrast() -> None:
    from test_plots import contrast

    for name, (colour, back) in TEXT_COLOURS.items():
        assert contrast(colour, back) >= 4.5, name


# ---------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def file(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


COLUMN = """(() => {
  const heads = [...document.querySelectorAll('table.sortable thead th')];
  const place = heads.findIndex(each => each.textContent === 'TTFT ms');
  return [...document.querySelectorAll('table.sortable tbody tr')]
    .filter(row => !row.hidden).map(row => row.cells[place].textContent); })()"""

# Of every visible text outside plots: its colour, what is behind it, its size.
COLOURS = """(() => {
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest('svg, script')) continue;
    let back = element;
    while (getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)') back = back.parentElement;
    found.set(getComputedStyle(element).color + ' on ' + getComputedStyle(back).backgroundColor,
              element.tagName + ': ' + element.textContent.slice(0, 30));
  }
  return [...found]; })()"""


def hexed(colour: str) -> str:
    numbers = [int(each) for each in re.findall(r"\d+", colour)[:3]]
    return "#" + "".join(f"{each:02x}" for each in numbers)


def test_in_a_browser_it_sorts_by_keyboard_and_asks_no_network(file: Path, tmp_path: Path) -> None:
    with Page(file, tmp_path, 1200) as shown:
        button = (
            "[...document.querySelectorAll('th button')].find(b => b.textContent === 'TTFT ms')"
        )
        shown.ask(f"{button}.focus()")
        shown.press("Enter")
        times = [float(each.replace(",", "")) for each in shown.ask(COLUMN) if each != "-"]
        assert times == sorted(times, reverse=True)
        assert len(set(times)) > 5
        assert shown.ask(f"{button}.parentElement.getAttribute('aria-sort')") == "descending"
        assert shown.ask("document.getElementById('requests-table-status').textContent") == (
            "sorted by TTFT ms, largest first"
        )
        shown.press(" ")
        times = [float(each.replace(",", "")) for each in shown.ask(COLUMN) if each != "-"]
        assert times == sorted(times)
        shown.press("Tab")
        assert shown.ask("document.activeElement.textContent") == "end to end ms"
        everything = len(shown.ask(COLUMN))
        shown.ask(
            "(() => { const box = document.getElementById('requests-table-filter');"
            "box.value = 'never'; box.dispatchEvent(new Event('input')); })()"
        )
        assert 0 < len(shown.ask(COLUMN)) < everything
        assert shown.problems == []


def test_in_a_browser_all_can_be_reached_by_tab_and_focus_is_seen(
    file: Path, tmp_path: Path
) -> None:
    with Page(file, tmp_path, 1200) as shown:
        shown.press("Tab")
        assert shown.ask("document.activeElement.textContent") == "Skip to the content"
        assert shown.ask("document.activeElement.getBoundingClientRect().left") >= 0
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        wanted = shown.ask(
            "document.querySelectorAll('a[href], button, input, summary, [tabindex=\"0\"]').length"
            " - document.querySelectorAll('details:not([open]) :is(a, pre)').length"
        )
        reached = 1
        for _ in range(wanted - 1):
            shown.press("Tab")
            assert shown.ask(outline) != "none", shown.ask("document.activeElement.outerHTML")
            reached += shown.ask("document.activeElement !== document.body")
        assert reached == wanted
        assert shown.ask("document.activeElement.tagName") == "SUMMARY"  # the last one


def test_in_a_browser_every_text_has_contrast(file: Path, tmp_path: Path) -> None:
    from test_plots import contrast

    with Page(file, tmp_path, 1200) as shown:
        shown.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
        pairs = shown.ask(COLOURS)
    assert len(pairs) >= 5
    for colours, example in pairs:
        text_colour, back = colours.split(" on ")
        assert contrast(hexed(text_colour), hexed(back)) >= 4.5, (colours, example)


@pytest.mark.parametrize("width", [320, 390])
def test_in_a_browser_as_wide_as_a_phone_only_tables_scroll(
    file: Path, tmp_path: Path, width: int
) -> None:
    with Page(file, tmp_path, width) as shown:
        shown.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert shown.ask("document.documentElement.scrollWidth") == width
        out = shown.ask(
            "[...document.querySelectorAll('main *')].filter(each => !each.closest('.scroll, pre')"
            f" && each.getBoundingClientRect().right > {width} + 1 && !each.closest('svg'))"
            ".map(each => each.outerHTML.slice(0, 80))"
        )
        assert out == []
        assert shown.ask("document.querySelector('.requests').scrollWidth") > width
        assert shown.ask("document.querySelector('figure svg').getBoundingClientRect().width") > 250
        assert shown.problems == []
