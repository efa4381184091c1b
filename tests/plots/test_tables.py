"""Figures of tables: rows, norms, cosines, and what they add to the scores."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from relpos.plots import (
    SCHEMES,
    Sizes,
    cosine_figure,
    effect_of,
    image_bytes,
    initial,
    norms_figure,
    table_figure,
)
from relpos.positions import Alibi, Huang, LearnedAbsolute, Shaw, WindowBias

SIZES = {"length": 6, "heads": 2, "head_dim": 4}


def panels(figure, title):
    """The visible panels of the part with this title, without its colour bar."""
    for part in figure.subfigs:
        if part.get_suptitle() == title:
            return [axes for axes in part.axes if axes.get_visible() and axes.get_label() == ""]
    raise AssertionError(title)


def labels(figure):
    """Everything written at axes."""
    found = [text.get_text() for part in figure.subfigs for text in part.texts]
    for axes in figure.findobj(lambda one: hasattr(one, "get_xlabel")):
        found += [axes.get_xlabel(), axes.get_ylabel()]
    return " | ".join(found)


def test_the_rows_are_the_image_with_offsets_below():
    position = Shaw(4, (3, 1))
    keys, values = panels(table_figure(position, **SIZES), "Rows of the table")
    assert (keys.get_title(), values.get_title()) == ("keys", "values")
    image = keys.images[0]
    np.testing.assert_array_equal(image.get_array(), position.keys[0].detach().T)
    assert image.get_extent()[:2] == [-3.5, 1.5]
    assert -image.get_clim()[0] == image.get_clim()[1]


def test_norms_and_cosines_are_those_of_the_rows():
    position = Shaw(4, (3, 1), values=False)
    figure = table_figure(position, **SIZES)
    rows = position.keys[0].detach().double()
    (norms,) = panels(figure, "Norm of each row")
    np.testing.assert_array_equal(norms.lines[0].get_xdata(), np.arange(-3, 2))
    np.testing.assert_allclose(norms.lines[0].get_ydata(), rows.norm(dim=1))
    (cosine,) = panels(figure, "Cosine similarity of any two rows")
    expected = torch.cosine_similarity(rows[:, None], rows[None], dim=-1)
    np.testing.assert_allclose(cosine.images[0].get_array(), expected)
    assert cosine.images[0].get_extent() == [-3.5, 1.5, 1.5, -3.5]
    assert cosine.images[0].get_clim() == (-1, 1)


@pytest.mark.parametrize(
    ("position", "back", "ahead"),
    [(Shaw(4, 2), True, True), (Huang(4, 6), True, False), (Shaw(4, (0, 2)), False, True)],
)
def test_the_axes_say_what_looks_back_and_what_looks_ahead(position, back, ahead):
    said = labels(table_figure(position, **SIZES))
    assert ("← looks back" in said) == back
    assert ("looks ahead →" in said) == ahead


def test_positions_look_neither_way():
    said = labels(table_figure(LearnedAbsolute(8, 6), **SIZES))
    assert "position (tokens)" in said
    assert "looks" not in said


def test_the_effect_is_drawn_for_each_head_and_hidden_ahead_of_a_causal_query():
    position = Huang(4, 6)
    for causal in (False, True):
        figure = table_figure(position, **SIZES, causal=causal)
        found = panels(figure, "Added to the scores")
        assert [axes.get_title() for axes in found] == ["head 1", "head 2"]
        for axes, effect in zip(found, effect_of(position, **SIZES), strict=True):
            shown = np.ma.filled(axes.images[0].get_array(), np.nan)
            assert np.isnan(shown[np.triu_indices(6, 1)]).all() == causal
            seen = np.tril(np.ones((6, 6), bool)) if causal else np.ones((6, 6), bool)
            np.testing.assert_array_equal(shown[seen], effect[seen])


def test_biases_are_lines_and_a_windows_are_maps():
    (lines,) = panels(table_figure(Alibi(2), **SIZES), "One number for each offset")
    np.testing.assert_array_equal(lines.lines[0].get_xdata(), np.arange(-5, 6))
    assert [line.get_label() for line in lines.lines] == ["bias, head 1", "bias, head 2"]
    position = WindowBias(2, (2, 3))
    maps = panels(table_figure(position, **SIZES), "One number for each offset on the grid")
    np.testing.assert_array_equal(maps[1].images[0].get_array(), position.joint_bias[1].detach())
    assert maps[0].images[0].get_extent() == [-2.5, 2.5, 1.5, -1.5]


def test_layers_are_small_multiples():
    positions = {f"layer {n}": Huang(4, 6) for n in (1, 2, 3)}
    figure = table_figure(positions, **SIZES, causal=True)
    titles = [axes.get_title() for axes in panels(figure, "Rows of the table")]
    assert titles == ["layer 1 keys", "layer 2 keys", "layer 3 keys"]
    effects = panels(figure, "Added to the scores")
    assert [axes.get_title() for axes in effects[:3]] == [
        "layer 1, head 1", "layer 1, head 2", "layer 2, head 1",
    ]  # fmt: skip


def test_one_number_far_beyond_the_others_does_not_make_them_pale_and_is_said():
    position = Shaw(64, 30, values=False)
    with torch.no_grad():
        position.keys[0, 0, 0] = 100.0
    figure = table_figure(position, length=4, heads=1, head_dim=64)
    (axes,) = panels(figure, "Rows of the table")
    assert axes.images[0].get_clim()[1] < 1
    bars = [one for one in figure.subfigs[0].axes if one.get_label() == "<colorbar>"]
    assert bars[0]._colorbar.extend == "both"


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="table_figure: positions must have tables or act on"):
        table_figure({}, **SIZES)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_has_a_figure(name):
    position, causal = initial(name, Sizes(6, 1, 4))
    figure = table_figure(position, length=6, heads=1, head_dim=4, causal=causal)
    assert figure.subfigs


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_figures_of_a_models_rows(layers):
    rows = torch.randn(layers, 9, 4).numpy()
    for figure in (
        cosine_figure(rows, -8, relative=True),
        norms_figure(rows, 0, relative=False),
    ):
        assert isinstance(figure, Figure)
        assert image_bytes(figure, ".svg").startswith(b"<?xml")


def test_rows_of_nothing_have_no_direction_but_a_figure():
    figure = cosine_figure(np.zeros((1, 3, 2), np.float32), 0, relative=False)
    assert b"<svg" in image_bytes(figure, ".svg")
