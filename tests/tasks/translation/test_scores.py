"""Scores are sacrebleu's, and what is drawn anew is drawn as it draws."""

import tracemalloc

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from relpos_tasks.translation.scores import (
    Interval,
    _drawn,
    bleu_by_length,
    compare_systems,
    score_system,
)
from tests.tasks.translation.sentences import pairs

REFERENCES = [pair.target for pair in pairs(40, words=7)]


def worse(share, seed):
    """The references with some words left out."""
    rng = np.random.default_rng(seed)
    return [" ".join(word for word in text.split() if rng.random() >= share) for text in REFERENCES]


GOOD, BAD = worse(0.1, 1), worse(0.3, 2)


def test_scores_and_signatures_are_sacrebleus():
    found = score_system(GOOD, REFERENCES)
    assert found.bleu.value == BLEU().corpus_score(GOOD, [REFERENCES]).score
    assert found.chrf == CHRF().corpus_score(GOOD, [REFERENCES]).score
    assert found.sentences == 40
    assert "case:mixed" in found.signatures["bleu"]
    assert "tok:13a" in found.signatures["bleu"]
    assert found.signatures["chrf"].startswith("nrefs:1|")


def test_an_interval_is_sacrebleus_too():
    test = PairedTest([("one", GOOD)], {"BLEU": BLEU()}, [REFERENCES], test_type="bs")
    theirs = test()[1]["BLEU"][0]
    ours = score_system(GOOD, REFERENCES).bleu
    assert (ours.high - ours.low) / 2 == pytest.approx(theirs.ci, abs=1e-4)
    assert ours.low < theirs.mean < ours.high
    assert ours.low < ours.value < ours.high


def test_a_difference_has_an_interval_and_a_p_value():
    found = compare_systems(
        {"bad": BAD, "good": GOOD, "same": list(BAD)}, REFERENCES, baseline="bad"
    )
    assert list(found) == ["good", "same"]
    difference = found["good"]
    scores = [score_system(system, REFERENCES).bleu.value for system in (GOOD, BAD)]
    assert difference.bleu.value == pytest.approx(scores[0] - scores[1])
    assert 0 < difference.bleu.low < difference.bleu.value < difference.bleu.high
    # No draw of a thousand is so far off.
    assert difference.p_value == 1 / 1001
    # Paired: much narrower than the two intervals together.
    alone = [score_system(system, REFERENCES).bleu for system in (GOOD, BAD)]
    assert difference.bleu.high - difference.bleu.low < sum(it.high - it.low for it in alone)


def test_p_values_of_systems_that_are_equally_good_are_spread_evenly():
    """Two systems that leave out words with equal chance: p is below x in a share x of cases."""
    found = [
        compare_systems(
            {"one": worse(0.2, seed), "other": worse(0.2, 100 + seed)}, REFERENCES, baseline="one"
        )["other"].p_value
        for seed in range(12)
    ]
    # With sacrebleu's, none of 12 was above 0.6; by chance that happens in 0.6^12 = 0.002 of cases.
    assert max(found) > 0.6
    assert min(found) > 0.001
    assert np.mean(found) > 0.3


def test_draws_are_those_of_all_at_once():
    """An interval to the bit, as a thousand draws made at once give it."""
    sentences = len(REFERENCES)
    drawn = np.random.default_rng(12345).choice(sentences, size=(1000, sentences))
    scores = sorted(
        BLEU().corpus_score([GOOD[n] for n in one], [[REFERENCES[n] for n in one]]).score
        for one in drawn
    )
    found = score_system(GOOD, REFERENCES).bleu
    assert found == Interval(found.value, scores[25], scores[-26])


def test_drawing_tens_of_thousands_of_sentences_takes_little_memory():
    counts = np.ones((30_000, 10), np.int64)
    tracemalloc.start()
    (drawn,) = _drawn(BLEU(), [counts])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert drawn == pytest.approx(100)
    # All draws at once are 240 MB.
    assert peak < 10 * 2**20


def test_the_same_translations_do_not_differ():
    found = compare_systems({"a": GOOD, "b": list(GOOD)}, REFERENCES, baseline="a")["b"]
    assert (found.bleu.value, found.bleu.low, found.bleu.high, found.p_value) == (0, 0, 0, 1)


def test_scores_by_length_are_those_of_the_sentences():
    lengths = [n % 20 for n in range(40)]
    found = bleu_by_length({"good": GOOD, "bad": BAD}, REFERENCES, lengths, last=[4, 9, 14, 30])
    assert found.names == ["0-4", "5-9", "10-14", "15-30"]
    assert found.sentences == [10] * 4
    for bucket, (first, last) in enumerate(((0, 4), (5, 9), (10, 14), (15, 30))):
        chosen = [n for n in range(40) if first <= lengths[n] <= last]
        for name, system in (("good", GOOD), ("bad", BAD)):
            expected = score_system([system[n] for n in chosen], [REFERENCES[n] for n in chosen])
            assert found.bleu[name][bucket] == expected.bleu


def test_buckets_without_sentences_are_left_out():
    found = bleu_by_length({"a": GOOD}, REFERENCES, [3] * 39 + [99], last=[5, 10])
    assert (found.names, found.sentences) == (["0-5", "11+"], [39, 1])


def test_empty_translations_score_nothing_and_nothing_to_score_is_refused():
    assert str(score_system([""] * 40, REFERENCES).bleu) == "0.0 (0.0 to 0.0)"
    with pytest.raises(ValueError, match="references must be at least one, got none"):
        score_system([], [])
    with pytest.raises(ValueError, match=r"bad must be 40, one for each reference, got 39"):
        compare_systems({"good": GOOD, "bad": BAD[1:]}, REFERENCES, baseline="good")
    with pytest.raises(ValueError, match="baseline must be one of good, got 'x'"):
        compare_systems({"good": GOOD}, REFERENCES, baseline="x")
    with pytest.raises(ValueError, match="lengths must be 40"):
        bleu_by_length({"good": GOOD}, REFERENCES, [1], last=[5])
    with pytest.raises(ValueError, match=r"last must rise, got \[5, 5\]"):
        bleu_by_length({"good": GOOD}, REFERENCES, [1] * 40, last=[5, 5])
