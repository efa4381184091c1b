"""Lines to translations: in order, empty lines kept, whatever their lengths."""

import numpy as np
import pytest
import torch

from relpos_tasks.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from relpos_tasks.translation import learn_subwords
from relpos_tasks.translation import translate as translate_module
from relpos_tasks.translation.attention import encoder_weights
from relpos_tasks.translation.subwords import END, LONGEST_LINE
from relpos_tasks.translation.translate import translate
from tests.tasks.translation.sentences import pairs

TEXT = [text for pair in pairs(20) for text in pair]
SUBWORDS = learn_subwords(TEXT, size=280)
LINES = ["A man sleeps.", "", " \t", TEXT[0], "", TEXT[7], "€"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    size = SUBWORDS.size
    config = EncoderDecoderConfig(size, size, width=16, layers=2, heads=2, hidden=16, dropout=0.5)
    made = EncoderDecoder(config).train()
    with torch.no_grad():
        # Sentences end soon.
        made.source_embedding.weight[END] *= 3
    return made


def test_lines_come_back_in_order_with_empty_ones_in_their_place(model):
    found = translate(model, SUBWORDS, LINES, beam=2)
    assert len(found) == len(LINES)
    assert [n for n, line in enumerate(found) if not line] == [1, 2, 4]
    alone = [translate(model, SUBWORDS, [line], beam=2)[0] for line in LINES]
    assert found == alone
    assert found == translate(model, SUBWORDS, LINES, beam=2, tokens=1)
    # Dropout is back where it was.
    assert model.training


def test_progress_counts_lines_and_empty_ones_are_done_at_once(model):
    told = []
    translate(model, SUBWORDS, LINES, beam=1, tokens=1, progress=told.append)
    assert told == [4, 5, 6, 7]
    assert translate(model, SUBWORDS, []) == []
    assert translate(model, SUBWORDS, ["", " "], progress=told.append) == ["", ""]


def test_spelling_of_characters_and_white_space_at_the_ends_do_not_matter(model):
    one, two = translate(model, SUBWORDS, ["scha\u0308ft", " sch\u00e4ft\n"], beam=1)
    assert one == two


def test_a_translation_is_one_line_whatever_the_model_says(model, monkeypatch):
    said = SUBWORDS.encode(" ein \r\n\n Mann\n")

    class Found:
        tokens = said

    def found(model, sources, *given, **named):
        return [[Found()] for _ in sources]

    monkeypatch.setattr(translate_module, "beam_search_all", found)
    assert translate(model, SUBWORDS, ["x", "y"]) == ["ein Mann"] * 2


def test_what_cannot_be_translated_is_refused_before_anything_is(model):
    long = "x " * (LONGEST_LINE + 1)
    with pytest.raises(
        ValueError, match=r"line 3 must have at most 1,000 subwords, got 2,002; part"
    ):
        translate(model, SUBWORDS, ["a", "", long])
    with pytest.raises(ValueError, match=r"subwords must be the model's 280, got 260"):
        translate(model, learn_subwords(TEXT, size=260), ["a"])
    with pytest.raises(ValueError, match="alpha must be a number in 0"):
        translate(model, SUBWORDS, ["a"], alpha=-1.0)


def test_the_encoders_weights_are_those_of_its_sentence(model):
    source = [*SUBWORDS.encode("A man sleeps."), END]
    weights = encoder_weights(model, source)
    assert weights.shape == (2, 2, len(source), len(source))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert np.triu(weights[0, 0], 1).sum() > 0.1
    assert model.training
