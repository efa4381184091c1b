"""The report on a comparison of pixel classifiers: its parts, its numbers, its words."""

import json
from dataclasses import replace

import pytest

from relpos_tasks.models.pixel_classifier import CONVOLUTION
from relpos_tasks.report.blocks import Report, Section
from relpos_tasks.report.page import render
from relpos_tasks.training.clock import TrainingTime
from relpos_tasks.vision.canvas import TESTS
from relpos_tasks.vision.page import comparison_report, cost_blocks
from relpos_tasks.vision.wording import is_good, protocol, verdict
from tests.tasks.html import Page
from tests.tasks.vision.small import small


@pytest.fixture(scope="module")
def page(compared):
    folder, _ = compared
    return Page((folder / "report.html").read_text("utf-8"))


def test_the_page_needs_nothing_but_itself(page):
    assert page.addresses
    assert all(address.startswith("data:") for _, address in page.addresses)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}


def test_every_part_is_there(page):
    parts = {"verdict", "held-out", "canvases", "curves", "tables", "attention", "literature"}
    assert parts | {"protocol"} <= page.ids
    assert all(found.get("alt") for tag, found in page.tags if tag == "img")
    images = page.decoded("img", "image/svg+xml")
    # Accuracy, a canvas of each test, curves, two maps of tables, three of attention.
    assert len(images) == 1 + len(TESTS) + 1 + 2 + 3
    assert all(b"<svg" in image for image in images)


def test_the_page_says_what_it_is_about(page):
    for words in ("Canvases are composed", "From memory", "1,200 to train", "2 seeds"):
        assert words in page.said
    assert "nan" not in page.said.lower().split()


@pytest.mark.parametrize(("averaging", "there"), [(None, False), (0.99, True)])
def test_the_protocol_says_how_weights_were_averaged(digits, averaging, there):
    said = " ".join(protocol(small(averaging=averaging), digits))
    assert ("moving average of the weights" in said) == there


def test_the_numbers_of_the_page_are_those_of_the_metrics(page, compared):
    folder, results = compared
    held_out = json.loads((folder / "metrics.json").read_text())["held_out"]
    for measured in held_out.values():
        for test in TESTS:
            assert f"{measured[test]:.3f} ±" in page.said
    assert " ".join(verdict(results)) in page.said


def test_times_of_a_busy_machine_are_marked_and_explained(compared):
    _, results = compared
    times = {"none": (65.0, 0.0, False), "absolute": (65.0, 0.0, False), "grid": (99.0, 1.3, True)}
    trained = {
        name: [replace(one, time=TrainingTime(*times[name])) for one in models]
        for name, models in results.trained.items()
    }
    section = Section("cost", "", cost_blocks(replace(results, trained=trained)))
    said = Page(render(Report("", "", [], good=True, sections=[section]))).said
    assert said.count("1 min 05 s") == 2
    assert said.count("1 min 39 s *") == 1
    assert "other programs used 1.3 cores while the model with grid was trained" in said


def test_models_without_attention_or_tables_have_a_page_too(compared, digits):
    _, results = compared
    alone = replace(
        results,
        trained={"none": results.trained["none"]},
        held_out={"none": results.held_out["none"]},
    )
    said = Page(render(comparison_report(small(), digits, alone))).said
    assert "None of these models has learned a table." in said


def measured(results, **accuracies):
    held_out = {
        name: [dict.fromkeys(TESTS, accuracy) for accuracy in values]
        for name, values in accuracies.items()
    }
    return replace(results, held_out=held_out, trained=dict.fromkeys(accuracies, ()))


def test_the_verdict_names_the_best_of_each_test(compared):
    _, results = compared
    found = verdict(measured(results, none=[0.3, 0.5], grid=[0.75]))
    assert len(found) == len(TESTS)
    assert "grid has the highest accuracy, 0.750 (none 0.400)." in found[0]
    for best in ("grid", "axial-rotary", "window"):
        assert is_good(measured(results, none=[0.3], **{best: [0.75]}))
    for best in ("none", "absolute-resized", "sinusoidal", CONVOLUTION):
        assert not is_good(measured(results, grid=[0.75], **{best: [0.8]}))
