"""The page on a comparison of models that harmonise: its parts, its numbers, its words."""

from pathlib import Path

import numpy as np
import pytest

from relpos_tasks.music.score import musicxml_of
from relpos_tasks.report.page import render
from relpos_tasks.translation.chorales import ChoraleSource
from relpos_tasks.translation.harmony_page import Harmony, harmony_report
from relpos_tasks.translation.harmony_wording import verdict
from tests.tasks.html import Page
from tests.tasks.music.pieces import piece_from
from tests.tasks.translation.comparisons import CHORALES, results_of


@pytest.fixture(scope="module")
def results(source):
    return results_of(["sinusoidal", "shaw-4"], CHORALES, ChoraleSource(source), seeds=2)


@pytest.fixture(scope="module")
def page(source, results):
    score = musicxml_of(piece_from(np.random.default_rng(0), 16))
    contents = {"musicxml": score.encode(), "mid": b"a midi file", "wav": b"a sound"}
    files = {Path(f"harmony.{ending}"): content for ending, content in contents.items()}
    harmony = Harmony("bwv 1", "shaw-4", files)
    return Page(render(harmony_report(CHORALES, ChoraleSource(source), results, harmony)))


def test_the_page_needs_nothing_but_itself(page):
    assert all(address.startswith("data:") for _, address in page.addresses)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}


def test_every_part_is_there(page):
    parts = {"verdict", "held-out", "harmony", "curves", "rows", "cost", "protocol"}
    assert parts <= page.ids
    assert all(found.get("alt") for tag, found in page.tags if tag == "img")
    # A score for wide and one for narrow screens, curves, two of rows on either side.
    assert len(page.decoded("img", "image/svg+xml")) == 2 + 1 + 4


def test_the_harmony_can_be_heard_and_saved(page):
    assert page.decoded("audio", "audio/wav") == [b"a sound"]
    assert page.decoded("a", "audio/midi") == [b"a midi file"]
    assert "The soprano of bwv 1" in page.said
    assert "best on the validation pieces (Shaw, k = 4)" in page.said


def test_the_numbers_of_the_page_are_those_of_the_metrics(page, results):
    for measured in results.metrics()["held_out"].values():
        assert f"{measured['nats']:.3f} ± 0.021" in page.said
    assert " ".join(verdict(results.mean, results.seeds)) in page.said


@pytest.mark.parametrize(
    ("nats", "seeds", "words"),
    [
        ({"shaw-4": 0.6, "none": 0.7}, [0], ["then no positions (0.700)", "trained once"]),
        ({"shaw-4": 0.7, "none": 0.6}, [0, 1], ["Best: no positions with 0.600", "No relative"]),
        ({"none": 0.6}, [0], ["Best: no positions with 0.600"]),
    ],
)
def test_the_verdict_says_what_came_out(nats, seeds, words):
    for sentence, expected in zip(verdict(nats, seeds), words, strict=True):
        assert expected in sentence
