"""The report on a comparison of chorale models: its parts, its numbers, its words."""

import io
import json
import wave
from dataclasses import replace

import mido
import pytest

from relpos_tasks.music.chorale_composer import ChoraleComposer
from relpos_tasks.music.page import comparison_report
from relpos_tasks.music.reported import HUANG_2018
from relpos_tasks.music.wording import curves_note, lengths_note, protocol, verdict
from relpos_tasks.report.blocks import Section
from relpos_tasks.report.page import render
from relpos_tasks.training.clock import TrainingTime
from tests.tasks.html import Page
from tests.tasks.small import small


@pytest.fixture(scope="module")
def page(compared):
    folder, _ = compared
    return Page((folder / "report.html").read_text("utf-8"))


def test_the_page_needs_nothing_but_itself(page):
    assert page.addresses
    assert all(address.startswith("data:") for _, address in page.addresses)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "url(" not in page.style
    assert "@import" not in page.style


def test_every_part_is_there(page):
    parts = {"verdict", "held-out", "chorale", "lengths", "curves", "rows", "protocol"}
    assert parts <= page.ids
    assert all(found.get("alt") for tag, found in page.tags if tag == "img")
    assert any(found.get("name") == "viewport" for tag, found in page.tags if tag == "meta")


def test_the_score_the_sound_and_the_midi_file_are_whole(page, compared):
    folder, _ = compared
    (midi,) = page.decoded("a", "audio/midi")
    assert midi == (folder / "chorale.mid").read_bytes()
    assert mido.MidiFile(file=io.BytesIO(midi)).length > 1
    (sound,) = page.decoded("audio", "audio/wav")
    assert sound == (folder / "chorale.wav").read_bytes()
    with wave.open(io.BytesIO(sound)) as file:
        assert file.getnframes()
    images = page.decoded("img", "image/svg+xml")
    assert len(images) >= 7
    assert all(b"<svg" in image for image in images)


def test_the_numbers_of_the_page_are_those_of_the_metrics(page, compared):
    folder, results = compared
    metrics = json.loads((folder / "metrics.json").read_text())
    said = page.said
    for nats in (
        metrics["held_out"]["huang"]["nats"],
        metrics["held_out"]["absolute"]["nats"],
        *metrics["counting"].values(),
        *metrics["lengths"]["shaw"].values(),
    ):
        assert f"{nats:.3f}" in said
    one, other = metrics["held_out"]["huang"]["nats_by_seed"]
    assert f"± {abs(one - other) / 2**0.5:.3f}" in said
    expected = verdict(results.mean, results.counting)
    assert " ".join(expected) in said
    assert "NaN" not in said


def timed(results, **times):
    trained = {
        name: [replace(one, time=times.get(name, TrainingTime(65.0, 0.0))) for one in models]
        for name, models in results.trained.items()
    }
    return replace(results, trained=trained)


def words_of(source):
    return ChoraleComposer().words(small(steps=4), source)


def page_from(source, results, **changes):
    settings, new = small(steps=4), Section("chorale", "A new chorale", [])
    words = replace(words_of(source), **changes)
    return Page(render(comparison_report(settings, source, results, words, new)))


def test_times_of_a_quiet_machine_carry_no_mark(compared, source):
    said = page_from(source, timed(compared[1])).said
    assert said.count("1 min 05 s") == 3
    assert "*" not in said
    assert "busy machine" not in said


def test_times_of_a_busy_machine_are_marked_and_explained(compared, source):
    said = page_from(source, timed(compared[1], absolute=TrainingTime(99.0, 1.26, True))).said
    assert "1 min 05 s Shaw" in said
    assert "1 min 39 s *" in said
    assert (
        "* Measured on a busy machine: other programs used 1.3 cores while the model with "
        "learned absolute was trained. Such a time does not compare models."
    ) in said


def test_without_long_pieces_the_page_says_so(compared, source):
    _, results = compared
    short = replace(results, lengths={name: [{}, {}] for name in results.trained}, long_pieces=0)
    page = page_from(source, short)
    assert "the length test could not be made" in page.said
    assert "lengths" in page.ids


def test_figures_of_others_stand_beside_ours_where_there_are_any(compared, source):
    _, results = compared
    assert "literature" not in page_from(source, results).ids
    page = page_from(source, results, reported=HUANG_2018)
    assert "literature" in page.ids
    _, _, said = page.said.partition("Beside the literature")
    assert "from memory of the paper's table" in said
    for sentence in HUANG_2018.differences:
        assert sentence in said
    ours = [f"here: Huang {results.mean['huang']:.3f}", "here: learned absolute", "here: Shaw"]
    theirs = [f"{title} {nats:.3f}" for title, nats in HUANG_2018.nats.items()]
    assert all(row in said for row in ours + theirs)
    order = [said.index(row) for row in reversed(theirs)]
    assert order == sorted(order)


@pytest.mark.parametrize(("averaging", "there"), [(None, False), (0.999, True)])
def test_the_protocol_says_how_weights_were_averaged(source, averaging, there):
    said = " ".join(protocol(small(averaging=averaging), words_of(source)))
    assert ("moving average of the weights" in said) == there

    assert ("by 0.001 of the way" in said) == there


@pytest.mark.parametrize(("rate", "there"), [(None, False), (3e-3, True)])
def test_the_protocol_says_what_muon_moved(source, rate, there):
    said = " ".join(protocol(small(muon_learning_rate=rate), words_of(source)))
    assert ("Muon moves the weight matrices" in said) == there


@pytest.mark.parametrize("too", [False, True])
def test_the_page_says_whether_validation_pieces_were_trained_on(source, too):
    settings = replace(small(), train_on_valid=too)
    said = " ".join(protocol(settings, words_of(source)))
    assert ("validation pieces, which these models were then trained on too" in said) == too
    note = curves_note(settings, "+ beat", words_of(source))
    assert ("the validation pieces, which were trained on too" in note) == too


@pytest.mark.parametrize(
    ("name", "true", "untrue"),
    [
        ("chorales", "pieces with the same music fall into the same part", "whether or not"),
        ("jsb.json", "valid pieces are held out as they are, whether or not", "fall into the same"),
    ],
)
def test_the_protocol_is_that_of_the_source(source, name, true, untrue):
    said = " ".join(protocol(small(), words_of(replace(source, name=name))))
    assert true in said
    assert untrue not in said


def test_the_note_on_lengths_says_what_lies_beyond_the_tables(compared, source):
    _, results = compared
    said = lengths_note(small(steps=4), results, words_of(source))
    assert "Beyond its last row a table repeats that row. From" in said
    logits = replace(results, trained={**results.trained, "relative-logits": []})
    said = lengths_note(small(steps=4), logits, words_of(source))
    assert (
        "a table repeats that row, but that of relative logits, which adds nothing there." in said
    )


@pytest.mark.parametrize(
    ("relative", "absolute", "best", "words"),
    [
        (0.5, 0.6, 0.7, ["Best: Huang with 0.500", "It beats the best counting baseline (b, "]),
        (0.6, 0.5, 0.7, ["Best: learned absolute with 0.500", "It beats", "No relative"]),
        (0.8, 0.9, 0.7, ["then learned absolute (0.900)", "It does not beat the best counting"]),
        (0.8, 0.8, 0.7, ["with 0.800", "does not beat"]),
    ],
)
def test_disappointing_numbers_are_said_in_words(relative, absolute, best, words):
    sentences = verdict({"huang": relative, "absolute": absolute}, {"a": 1.0, "b": best})
    for sentence, expected in zip(sentences, words, strict=True):
        assert expected in sentence
