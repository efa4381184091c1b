import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from relpos.tasks.figures import (
    cosine_figure,
    curves_figure,
    lengths_figure,
    norms_figure,
    table_rows,
)
from relpos.tasks.music.train import build

from .small import SMALL

CURVES = {
    "relative": {"train": [(1, 4.0), (2, 3.0)], "valid": [(2, 3.5)]},
    "absolute": {"train": [(1, 4.1)], "valid": []},
}


def test_the_rows_of_a_model_are_those_of_its_tables(source):
    model = build("huang", SMALL, source.vocabulary)
    rows, first, relative = table_rows(model)
    assert (rows.shape, first, relative) == ((1, 16, 4), -15, True)
    np.testing.assert_array_equal(rows, model.blocks[0].attention.position.keys.detach())
    rows, first, relative = table_rows(build("absolute", SMALL, source.vocabulary))
    assert (rows.shape, first, relative) == ((1, 16, 8), 0, False)
    assert len(table_rows(build("sinusoidal", SMALL, source.vocabulary))[0]) == 0


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_figures_are_svg_and_the_same_each_time(layers):
    rows = torch.randn(layers, 9, 4).numpy()
    for draw in (
        lambda: cosine_figure(rows, -8, relative=True),
        lambda: norms_figure(rows, 0, relative=False),
        lambda: curves_figure(CURVES, ("counting", 1.0)),
        lambda: curves_figure(CURVES, None),
        lambda: lengths_figure({"relative": {16: 1.0, 32: 1.1}, "absolute": {16: 1.0, 32: 3.0}}),
    ):
        svg = draw()
        assert ET.fromstring(svg.encode()).tag.endswith("svg")
        assert svg == draw()


def test_rows_of_nothing_have_no_direction_but_a_figure():
    assert "<svg" in cosine_figure(np.zeros((1, 3, 2), np.float32), 0, relative=False)
