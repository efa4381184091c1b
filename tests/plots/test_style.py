"""Figures as files: PNG and SVG, the same bytes each time, whatever the user's settings."""

import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

from relpos.plots import image_bytes, shear_figure
from relpos.plots.style import integer_axis, new_figure, ramp, svg

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_file_is_of_the_kind_that_its_suffix_says():
    figure = shear_figure(3)
    assert image_bytes(figure, ".png").startswith(PNG)
    assert ET.fromstring(image_bytes(figure, ".svg")).tag.endswith("svg")


@pytest.mark.parametrize("suffix", [".pdf", "", "svg", ".SVG"])
def test_other_suffixes_are_refused(suffix):
    with pytest.raises(ValueError, match=r"image_bytes: suffix must be '.png' or '.svg', got"):
        image_bytes(shear_figure(3), suffix)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_picture_has_the_same_bytes_whatever_the_users_settings(suffix):
    first = image_bytes(shear_figure(3), suffix)
    with mpl.rc_context({"font.family": "serif", "svg.hashsalt": None, "lines.linewidth": 9}):
        assert image_bytes(shear_figure(3), suffix) == first


def test_nothing_in_a_file_tells_the_day_or_the_version():
    for suffix in (".png", ".svg"):
        content = image_bytes(shear_figure(3), suffix)
        assert mpl.__version__.encode() not in content
        assert b"dc:date" not in content


def test_drawing_leaves_the_users_settings_alone():
    before = dict(mpl.rcParams)
    image_bytes(shear_figure(3), ".png")
    assert dict(mpl.rcParams) == before


def test_a_page_gets_a_figure_without_a_background():
    with new_figure(2.0, 1.0) as (figure, _):
        pass
    assert "fill: none" in svg(figure)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.5, 47.5, [0, 16, 32]), (-12.5, 12.5, [-8, 0, 8]), (3.5, -3.5, [-2, 0, 2]), (0, 1, [0, 1])],
)
def test_ticks_are_multiples_of_a_power_of_two(low, high, expected):
    with new_figure(2.0, 1.0) as (_, (axes,)):
        axes.set_xlim(low, high)
        integer_axis(axes.xaxis)
        assert list(axes.xaxis.get_majorticklocs()) == expected


def test_a_ramp_goes_from_light_to_dark():
    shades = [sum(mpl.colors.to_rgb(color)) for color in ramp(4)]
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) == 4
