"""The page on a comparison of translators: its parts, its numbers, its words."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from relpos_tasks.report.blocks import Report, Section
from relpos_tasks.report.page import render
from relpos_tasks.report.wording import seeds_note
from relpos_tasks.training.clock import TrainingTime
from relpos_tasks.translation import Pair, paper
from relpos_tasks.translation.ablation import ablation_blocks, tables_of
from relpos_tasks.translation.measure import beyond_training
from relpos_tasks.translation.page_parts import (
    cost_blocks,
    learned_blocks,
    shown,
)
from relpos_tasks.translation.scores import Difference, Interval
from relpos_tasks.translation.sentence_blocks import attention_blocks, samples_blocks
from relpos_tasks.translation.text_page import text_report
from relpos_tasks.translation.text_wording import (
    difference_of,
    is_good,
    lengths_note,
    protocol,
    verdict,
)
from tests.tasks.html import Page
from tests.tasks.translation.comparisons import (
    LENGTH_TEST,
    TEXT,
    results_of,
    text_results,
    text_source,
    timed,
)

COMPARED = ["sinusoidal", "shaw-0", "shaw-4"]
ABLATION = ["sinusoidal", "shaw-0", "shaw-1", "shaw-4", "shaw-4-keys", "shaw-4-values", "none"]


@pytest.fixture(scope="module")
def source():
    return text_source()


@pytest.fixture(scope="module")
def results(source):
    return text_results(COMPARED, TEXT, source, seeds=2)


@pytest.fixture(scope="module")
def page(source, results):
    return Page(render(text_report(TEXT, source, results)))


def ranked(results):
    mean = results.translations.mean
    return sorted(mean, key=mean.__getitem__, reverse=True)


def page_of(blocks):
    section = Section("part", "", blocks)
    template = "translation/report.html"
    return Page(render(Report("", "", [], good=True, sections=[section], template=template)))


def test_the_page_needs_nothing_but_itself(page):
    assert page.addresses
    assert all(address.startswith("data:") for _, address in page.addresses)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "url(" not in page.style


def test_every_part_is_there(page):
    parts = {"verdict", "held-out", "differences", "lengths", "samples", "curves", "attention"}
    assert parts | {"rows", "cost", "literature", "protocol"} <= page.ids
    assert "ablation" not in page.ids
    assert all(found.get("alt") for tag, found in page.tags if tag == "img")
    # Lengths, curves, attention of two models, two of rows on either side.
    images = page.decoded("img", "image/svg+xml")
    assert len(images) == 1 + 1 + 2 + 4
    assert all(b"<svg" in image for image in images)


def test_the_numbers_of_the_page_are_those_of_the_metrics(page, results):
    metrics = results.metrics()
    for name, measured in metrics["held_out"].items():
        for number in (f"{measured['bleu']:.1f} ±", f"{measured['nats']:.3f} ±"):
            assert number in page.said
        assert f"{metrics['parameters'][name]:,} 2.00" in page.said
    differences = metrics["held_out"]["shaw-4"]["difference_by_seed"]
    assert f"{fmean(differences):+.1f} ± {stdev(differences):.1f} " in page.said
    assert f"{min(differences):+.1f} to {max(differences):+.1f}" in page.said
    for signature in metrics["translations"]["signatures"].values():
        assert signature in page.said
    assert " ".join(verdict(results.translations)) in page.said
    assert "nan" not in page.said.lower().split()


def test_one_seed_has_an_interval_and_no_deviation(source):
    results = text_results(["sinusoidal"], TEXT, source)
    page = Page(render(text_report(TEXT, source, results)))
    assert str(results.translations.scores["sinusoidal"][0].bleu) in page.said
    assert "±" not in page.said
    assert "differences" not in page.ids
    assert "None of these schemes has rows that are learned." in page.said
    assert is_good(results.translations) is False


def test_how_many_pairs_were_trained_on_and_left_out_is_said(source, results):
    train = (*source.split.train, *(Pair(f"{n} " * 25, f"{n}") for n in range(3)))
    with_long = replace(source, split=replace(source.split, train=train))
    said = Page(render(text_report(TEXT, with_long, results))).said
    # Seven of the forty have more than twenty subwords.
    assert "from en to de on 33 pairs from made-up" in said
    assert "sentence of more than 20 none is trained on: 10 were left out, 33 trained on." in said
    assert "were on pairs set aside from Multi30k's train" in said


def test_of_one_seed_the_difference_of_the_best_is_said_to_be_chosen_and_measured_once(source):
    results = text_results([*COMPARED, "shaw-2"], TEXT, source)
    said = verdict(results.translations)
    assert said[-1] == seeds_note(1)
    assert "chosen as the best of 2 relative schemes on these very sentences" in said[2]
    difference = results.translations.differences["shaw-2"]
    page = Page(render(text_report(TEXT, source, results)))
    assert f"{difference.p_value:.3f}" in page.said
    assert f"95 %: {difference.bleu.low:+.1f} to {difference.bleu.high:+.1f}" in said[1]


@pytest.mark.parametrize(
    ("moved", "good", "words"),
    [
        ((30, 31), True, "With Shaw, k = 4 BLEU is higher than with sinusoidal for each of 2 seed"),
        ((30, -1), False, "between Shaw, k = 4 and sinusoidal 2 seeds do not agree (mean "),
        ((-30, -31), False, "BLEU is lower than with sinusoidal for each of 2 seeds"),
    ],
)
def test_of_several_seeds_no_single_one_decides(source, moved, good, words):
    found = text_results(["sinusoidal", "shaw-4"], TEXT, source, seeds=2).translations
    scores = [
        replace(one, bleu=replace(one.bleu, value=one.bleu.value + by))
        for one, by in zip(found.scores["sinusoidal"], moved, strict=True)
    ]
    found = replace(found, scores=found.scores | {"shaw-4": scores})
    # What the first seed alone says is not asked.
    wrong = Difference(Interval(-9.0, -10.0, -8.0) if good else Interval(9.0, 8.0, 10.0), 0.001)
    found = replace(found, differences={"shaw-4": wrong})
    said = verdict(found)[1]
    assert words in said
    assert f"(mean {fmean(moved):+.1f} BLEU, {min(moved):+.1f} to {max(moved):+.1f})" in said
    assert seeds_note(1) not in verdict(found)
    assert is_good(found) is good


def test_speed_is_beside_that_of_the_first_and_busy_times_are_marked(results):
    times = {"shaw-0": TrainingTime(130.0), "shaw-4": TrainingTime(260.0, 1.3, True)}
    said = page_of(cost_blocks(timed(results, **times))).said
    assert "2.00 100 % 1 min 05 s Shaw" in said
    assert "1.00 50 % 2 min 10 s Shaw" in said
    assert "0.50 * 25 % * 4 min 20 s *" in said
    assert "1.3 cores while the model with Shaw, k = 4 was trained" in said


def test_the_first_sentence_of_each_length_is_shown(source, results):
    (_, block) = samples_blocks(results, results.translations, ranked(results))
    expected = []
    for low, high in ((1, 5), (6, 10), (11, 12), (13, 15), (16, 20), (21, 30)):
        alike = [pair for pair in source.split.held_out if low <= len(pair[1].split()) <= high]
        expected += [pair.source for pair in alike[:1]]
    assert len(expected) > 3
    assert [one.texts["source"] for one in block.samples] == expected
    shown_last = block.samples[-1].texts
    assert list(shown_last) == ["source", "reference", "sinusoidal", "Shaw, k = 0", "Shaw, k = 4"]
    translated = results.translations.systems["sinusoidal"][0]
    number = results.translations.sources.index(expected[-1])
    length = len(source.split.held_out[number].target.split())
    assert shown_last["sinusoidal"] == translated[number]
    assert block.samples[-1].title == f"Sentence {number + 1} of 24, {length} words"


def test_sentences_are_text_and_run_in_their_own_direction():
    markup, arabic = "<b>Tom</b> & </dd>", "رجل ينام."
    source = text_source([Pair(markup, arabic), Pair("a " * 400, "b " * 400)])
    results = text_results(["sinusoidal"], TEXT, source)
    empty = replace(results.translations, systems={"sinusoidal": [["", "\u202eb"]]})
    page = page_of(samples_blocks(results, empty, ["sinusoidal"]))
    assert f"source {markup} reference {arabic} sinusoidal \N{EN DASH}" in page.said
    assert "b" not in {tag for tag, _ in page.tags}
    texts = [found for tag, found in page.tags if tag == "dd"]
    assert len(texts) == 6
    assert all(found == {"dir": "auto"} for found in texts)


def test_figures_show_what_is_not_relative_beside_the_best(source):
    results = results_of(ABLATION, TEXT, source)
    assert shown(results, ["shaw-1", *ABLATION]) == ["sinusoidal", "shaw-0", "shaw-1", "none"]
    assert shown(results_of(COMPARED, TEXT, source), COMPARED) == COMPARED


def test_the_ablation_stands_beside_the_papers(source):
    found = text_results(ABLATION, TEXT, source).translations
    blocks = ablation_blocks(found)
    page = page_of(blocks)
    assert page.said.count(paper.WHERE) >= 3
    assert len(page.decoded("img", "image/svg+xml")) == 1
    for k, name in {"0": "shaw-0", "1": "shaw-1", "keys": "shaw-4-keys", "neither": "none"}.items():
        theirs = (paper.BLEU_BY_DISTANCE | paper.BLEU_BY_TABLES)[int(k) if k.isdigit() else k]
        assert f"{k} {found.scores[name][0].bleu} {theirs}" in page.said
    assert tables_of(ABLATION) == {
        "keys and values": "shaw-4",
        "keys": "shaw-4-keys",
        "values": "shaw-4-values",
        "neither": "none",
    }


def test_two_distances_are_no_curve(results):
    assert ablation_blocks(results.translations) == []
    assert tables_of(COMPARED) == {}


def test_a_distance_that_the_paper_does_not_have_has_no_figure_of_it(source):
    found = text_results(["shaw-0", "shaw-1", "shaw-3"], TEXT, source).translations
    said = page_of(ablation_blocks(found)).said
    assert f"3 {found.scores['shaw-3'][0].bleu} \N{EN DASH}" in said


def test_the_length_test_says_where_training_ended_and_how_long_sentences_fare(source):
    results = text_results(["sinusoidal", "absolute", "shaw-4"], LENGTH_TEST, source)
    long = beyond_training(results.translations)
    results = replace(results, translations=replace(results.translations, beyond=long))
    page = Page(render(text_report(LENGTH_TEST, source, results)))
    assert long.systems["shaw-4"] == [results.translations.systems["shaw-4"][0][12:]]
    assert "The 12 of 24 held-out sentences with more than 12 words" in page.said
    assert "training ended at 10" in page.said
    assert "straw man" in page.said
    assert " ".join(verdict(results.translations, long)) in page.said
    # Rows of Shaw's tables on either side, and one map of absolute positions each.
    assert len(learned_blocks(results, ranked(results))) == 4 + 2


def test_there_is_no_straw_man_without_absolute_positions(results):
    assert "straw man" not in lengths_note(LENGTH_TEST, results)
    assert "straw man" not in lengths_note(TEXT, results)


def test_k_of_0_is_explained_where_it_is_compared(source, results):
    trained_on = source.trained_on(TEXT)
    said = " ".join(protocol(TEXT, source, results, trained_on))
    assert "every offset shares one row" in said
    assert "causal mask alone" in said
    without = results_of(["sinusoidal"], TEXT, source)
    assert "k = 0" not in " ".join(protocol(TEXT, source, without, trained_on))


def test_models_that_translate_nothing_have_a_page_too(source):
    results = text_results(["sinusoidal"], TEXT, source)
    nothing = replace(
        results.translations,
        scores={
            "sinusoidal": [
                replace(results.translations.scores["sinusoidal"][0], bleu=Interval(0.0, 0.0, 0.0))
            ]
        },
    )
    report = text_report(TEXT, source, replace(results, translations=nothing))
    assert "with 0.0 BLEU" in report.verdict[0]
    assert "None of them translates yet" in report.verdict[1]
    assert "width: 0.0%" in render(report)


@pytest.mark.parametrize("sentence", ["a\x01b --> ]]>", "x" * 30, "猫 -- $a$"])
def test_any_sentence_has_maps_of_attention(sentence):
    source = text_source([Pair(sentence, "b")])
    results = text_results(["sinusoidal", "shaw-4"], TEXT, source)
    images = page_of(
        attention_blocks(source, results, results.translations, ["shaw-4", "sinusoidal"])
    ).decoded("img", "image/svg+xml")
    assert len(images) == 2
    assert all(ET.fromstring(image).tag.endswith("svg") for image in images)


def test_a_sentence_too_long_to_be_read_has_no_map():
    source = text_source([Pair("x y " * 60, "b")])
    results = text_results(["sinusoidal"], TEXT, source)
    assert attention_blocks(source, results, results.translations, ["sinusoidal"]) == []


def test_a_page_of_text_needs_translations(source):
    with pytest.raises(ValueError, match="results must have translations, got none"):
        text_report(TEXT, source, results_of(["sinusoidal"], TEXT, source))


@pytest.mark.parametrize(
    ("low", "value", "high", "words"),
    [
        (
            0.1,
            0.4,
            0.7,
            "BLEU is higher than with sinusoidal (+0.4 BLEU, 95 %: +0.1 to +0.7",
        ),
        (
            -0.2,
            0.3,
            0.7,
            "Shaw, k = 4 and sinusoidal these sentences show no difference (+0.3",
        ),
        (-0.9, -0.5, -0.1, "With Shaw, k = 4 BLEU is lower than with sinusoidal (-0.5"),
        (0.0, 0.0, 0.0, "no difference"),
    ],
)
def test_what_lies_inside_the_interval_is_no_difference(source, low, value, high, words):
    results = text_results(COMPARED, TEXT, source)
    difference = Difference(Interval(value, low, high), 0.04)
    assert words in difference_of("shaw-4", "sinusoidal", difference)
    found = replace(results.translations, differences={"shaw-0": difference, "shaw-4": difference})
    assert is_good(found) is (low > 0)
    assert words in verdict(found)[1]


def test_the_verdict_names_the_best_and_what_k_of_0_is_worth(results):
    found = results.translations
    sentences = verdict(found)
    assert sentences[0].startswith(f"Best: Shaw, k = 4 with {found.mean['shaw-4']:.1f} BLEU on 24")
    assert f"BLEU is {found.mean['shaw-0']:.1f}." in sentences[2]
