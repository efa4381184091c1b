"""The report's figures."""

import xml.etree.ElementTree as ET

from relpos_tasks.report.figures import curves_figure, lengths_figure

CURVES = {
    "relative": {"train": [(1, 4.0), (2, 3.0)], "valid": [(2, 3.5)]},
    "absolute": {"train": [(1, 4.1)], "valid": []},
}


def test_figures_are_svg_and_the_same_each_time():
    for draw in (
        lambda: curves_figure(CURVES, ("counting", 1.0)),
        lambda: curves_figure(CURVES, None),
        lambda: lengths_figure({"relative": {16: 1.0, 32: 1.1}, "absolute": {16: 1.0, 32: 3.0}}),
    ):
        svg = draw()
        assert ET.fromstring(svg.encode()).tag.endswith("svg")
        assert svg == draw()
