"""The page of a report, whatever the task: its blocks, and that it needs no network."""

import pytest

from relpos_tasks.report.blocks import (
    DownloadBlock,
    FactsBlock,
    FigureBlock,
    ListBlock,
    Report,
    Section,
    TableBlock,
    TableRow,
    TextBlock,
)
from relpos_tasks.report.page import render
from tests.tasks.html import Page

ROWS = [
    TableRow(["one & only", "0.5", "7"], bar=0.5, color="#0b6e6e", strong=True),
    TableRow(["other", "1.0", None], bar=1.0, color="#98a2b0"),
]
BLOCKS = {
    "text": TextBlock("a < b"),
    "list": ListBlock(["first sentence", "second sentence"]),
    "facts": FactsBlock({"cores": "2"}),
    "figure": FigureBlock("<svg/>", "a curve", "how to read it", small=True),
    "download": DownloadBlock("Save it", "notes.bin", b"\x00\x01", "application/octet-stream"),
    "table": TableBlock(["model", "loss", "steps"], ROWS, note="losses of one run"),
}


def report(**changes):
    sections = [Section(name, f"About {name}", [block]) for name, block in BLOCKS.items()]
    return Report("A title", "A summary.", ["A verdict.", "Another."], True, sections, **changes)


@pytest.fixture(scope="module")
def page():
    return Page(render(report()))


def test_every_section_stands_on_the_page_in_order(page):
    assert set(BLOCKS) <= page.ids
    places = [page.said.index(f"About {name}") for name in BLOCKS]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "words",
    [
        "A title", "A summary.", "A verdict. Another.", "a < b", "first sentence",
        "second sentence", "cores 2", "how to read it", "Save it", "one & only",
        "losses of one run",
    ],
)  # fmt: skip
def test_the_page_says_what_its_blocks_say(page, words):
    assert words in page.said


def test_files_and_figures_lie_inside_the_page(page):
    assert page.decoded("img", "image/svg+xml") == [b"<svg/>"]
    assert page.decoded("a", "application/octet-stream") == [b"\x00\x01"]
    assert all(address.startswith("data:") for _, address in page.addresses)


def test_every_cell_carries_its_columns_name_for_narrow_screens(page):
    cells = [found for tag, found in page.tags if tag == "td" and found.get("class") != "bar"]
    assert [found["data-column"] for found in cells] == ["model", "loss", "steps"] * 2
    assert [found.get("class") for found in cells] == [None] * 5 + ["none"]


def test_narrow_screens_hide_no_column_that_holds_a_number(page):
    narrow = page.style.partition("@media (max-width")[2].partition("@media print")[0]
    hidden = [rule for rule in narrow.split("}") if "display: none" in rule]
    assert len(hidden) == 1
    assert hidden[0].partition("{")[0].strip() == "thead, td.none"


def test_a_table_without_bars_has_no_column_for_them():
    table = TableBlock(["model", "loss"], [TableRow(["one", "0.5"])])
    given = Report("T", "S", ["V"], True, [Section("t", "T", [table])])
    assert not [1 for _, found in Page(render(given)).tags if found.get("class") == "bar"]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="TableBlock: rows must have 2 cells, got 1"):
        TableBlock(["model", "loss"], [TableRow(["one"])])


@pytest.mark.parametrize(("good", "classes"), [(True, "verdict"), (False, "verdict poor")])
def test_a_poor_verdict_looks_otherwise(good, classes):
    page = Page(render(Report("T", "S", ["V"], good)))
    assert [found["class"] for _, found in page.tags if found.get("id") == "verdict"] == [classes]
