"""The figures of a report are SVG, with what they are told to say."""

import math
import xml.etree.ElementTree as ET

import pytest

from relpos_tasks.report.colors import BASELINE, series_colors, series_lines
from relpos_tasks.report.figures import curves_figure, lengths_figure

CURVES = {
    "relative": {"train": [(1, 4.0), (2, 3.0)], "valid": [(2, 3.5)]},
    "absolute": {"train": [(1, 4.1)], "valid": []},
}
LENGTHS = {"relative": {16: 1.0, 32: 1.1}, "absolute": {16: 1.0, 32: 3.0}}
FAR_APART = {"relative": {16: 0.45, 32: 0.45}, "absolute": {16: 0.5, 32: 8.0}}
MANY = {f"scheme {n}": CURVES["relative"] for n in range(16)}
DRAW = {
    "curves with a baseline": lambda: curves_figure(CURVES, ("counting", 1.0), ylabel="bits"),
    "curves alone": lambda: curves_figure(CURVES, None, ylabel="bits"),
    "many curves": lambda: curves_figure(MANY, ("counting", 1.0), ylabel="bits"),
    "many lengths": lambda: lengths_figure(
        dict.fromkeys(MANY, LENGTHS["relative"]), xlabel="words", ylabel="bits"
    ),
    "lengths": lambda: lengths_figure(LENGTHS, xlabel="words", ylabel="bits"),
    "lengths far apart": lambda: lengths_figure(FAR_APART, xlabel="words", ylabel="bits"),
}


@pytest.mark.parametrize("name", DRAW)
def test_a_figure_is_svg_and_the_same_each_time(name):
    svg = DRAW[name]()
    assert ET.fromstring(svg.encode()).tag.endswith("svg")
    assert "<!-- bits -->" in svg
    assert svg == DRAW[name]()


def test_what_is_compared_has_colours_of_its_own():
    colors = series_colors("abcdef")
    assert len(set(colors.values())) == 6
    for color in colors.values():
        # In red, green and blue, each 0..255.
        assert math.dist(bytes.fromhex(color[1:]), bytes.fromhex(BASELINE[1:])) > 70, color
    assert series_colors("ab") == {name: colors[name] for name in "ab"}


def test_what_has_one_colour_has_lines_of_its_own():
    names = "abcdefghijklmnopqr"
    colors, lines = series_colors(names), series_lines(names)
    assert len({(colors[name], lines[name]) for name in names}) == 18


def test_values_far_apart_have_a_logarithmic_axis():
    def ticks(measured):
        return {
            tick for tick in ("0.5", "1", "2", "5")
            if f"<!-- {tick} -->" in lengths_figure(measured, xlabel="words", ylabel="bits")
        }  # fmt: skip

    assert ticks(FAR_APART) == {"0.5", "1", "2", "5"}
    assert ticks(LENGTHS) == set()
