"""The figures of translation are SVG, with what they are told to say, the same each time."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from relpos_tasks.translation import paper
from relpos_tasks.translation.figures import (
    ablation_figure,
    bleu_by_length_figure,
    sentence_attention_figure,
)
from relpos_tasks.translation.scores import Buckets, Interval


def interval(value):
    return Interval(float(value), value - 1.0, value + 2.0)


BUCKETS = Buckets(
    ["0-10", "11+"],
    [1234, 5],
    {name: [interval(n), interval(n / 2)] for n, name in enumerate(("shaw", "sinusoidal"), 20)},
)
DISTANCES = {k: interval(10 + k) for k in (0, 1, 16)}
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(3), (5, 2)).astype(np.float32)
DRAW = {
    "by length": (
        lambda: bleu_by_length_figure(BUCKETS, xlabel="words of the source"),
        ["shaw", "sinusoidal", "0-10", "1,234", "BLEU", "words of the source; below it how many"],
    ),
    "ablation": (
        lambda: ablation_figure(DISTANCES, {"keys": interval(3), "neither": interval(0)}),
        ["measured here", paper.WHERE, "256", "and values", "neither"],
    ),
    "ablation of k alone": (lambda: ablation_figure(DISTANCES), ["measured here", "from memory"]),
    "attention": (
        lambda: sentence_attention_figure(WEIGHTS, ["$a$", "<end>"], ["▁Ein", "▁$", "猫"]),
        ["head 5", "$a$", "▁Ein", "▁$", "猫", "key (looked at)", "weight"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAW)
def test_a_figure_is_svg_that_says_what_it_is_told(name):
    draw, said = DRAW[name]
    svg = draw()
    assert ET.fromstring(svg.encode()).tag.endswith("svg")
    # Texts are drawn as shapes, with the text itself beside them as a comment.
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    root = ET.fromstring(svg.encode(), parser)
    comments = " ".join(it.text or "" for it in root.iter(ET.Comment))  # type: ignore[arg-type]
    for text in said:
        assert text in comments, text
    assert svg == draw()


def test_maps_and_tokens_must_fit_each_other():
    with pytest.raises(ValueError, match=r"must be \(h, i, j\) with i=3, j=2, got \(5, 2, 3\)"):
        sentence_attention_figure(WEIGHTS, ["a", "b", "c"], ["a", "b"])
    with pytest.raises(ValueError, match=r"got \(0, 2, 3\)"):
        sentence_attention_figure(WEIGHTS[:0], ["a", "b"], ["a", "b", "c"])
