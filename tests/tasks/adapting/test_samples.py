"""Inputs that are made up for a check: each model takes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from relpos_tasks.adapting import make_inputs, measure_gain
from tests.adapters.models import BY_NAME, CASES
from tests.adapters.models.case import Case

pytestmark = pytest.mark.no_typecheck

PRETRAINED = [case for case in CASES if case.first and case.pretrained]
# By the main input: a length for small models; images have their own, and CLAP's sounds.
LENGTHS = {"input_ids": 30, "input_values": 1200, "flattened_patches": 30, "pixel_values": None}
SIZES: dict[str, Any] = {
    "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 30,
}  # fmt: skip


@pytest.mark.parametrize("case", PRETRAINED, ids=lambda case: case.name)
def test_a_model_takes_the_inputs_that_are_made_for_it(case: Case):
    model: Any = case.model()
    pixels = model.main_input_name == "pixel_values" or "Ocr" in type(model).__name__
    own = pixels or case.name == "clap audio"
    length = None if own else LENGTHS.get(model.main_input_name, 100)
    inputs, words = make_inputs(model, length)
    assert length is None or words.startswith(f"{length} ")
    gain = measure_gain(model, inputs, rounds=1)
    assert gain.report
    torch.testing.assert_close(gain.adapted.output, gain.original.output, rtol=1e-3, atol=1e-4)


def config_of(name) -> Any:
    return BY_NAME[name].model().config


HEADS = {
    # It looks for the end of the text, of which there must be one.
    "text of an encoder and a decoder": lambda: transformers.T5ForSequenceClassification(
        transformers.T5Config(**SIZES)
    ),
    "choices": lambda: transformers.DebertaV2ForMultipleChoice(config_of("deberta_v3")),
    "maps of an image": lambda: transformers.BeitBackbone(config_of("beit")),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_model_may_have_any_head(head):
    model = HEADS[head]().eval()
    length = None if model.main_input_name == "pixel_values" else 12
    assert measure_gain(model, make_inputs(model, length)[0], rounds=1).report


def test_a_text_is_of_words_and_ends():
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**SIZES, pad_token_id=3, eos_token_id=5, image_token_id=7)
    )
    inputs, _ = make_inputs(model, 500)
    for x in inputs.values():
        ids = set(x.unique().tolist())
        assert ids == {*range(30)} - {3, 7}
        assert x[0, -1] == 5
        assert 5 not in x[0, :-1]


@pytest.mark.parametrize(
    ("name", "most", "words"),
    [("mpt", 2100, "no position for more tokens"), ("clap audio", 128, "frames of features for")],
)
def test_a_length_beyond_what_a_model_has_room_for_is_refused(name, most, words):
    model = BY_NAME[name].model()
    assert make_inputs(model, most)[1].startswith(f"{most} ")
    with pytest.raises(ValueError, match=rf"--length: must be at most {most}") as error:
        make_inputs(model, most + 1)
    assert words in str(error.value)


def test_what_may_be_left_out_beside_an_image_is():
    class Prompted(torch.nn.Module):
        main_input_name = "pixel_values"
        config = transformers.BeitConfig(image_size=32)

        def forward(self, pixel_values, prompt_depth=None): ...

    inputs, words = make_inputs(Prompted(), None)
    assert (inputs.keys(), words) == ({"pixel_values"}, "32 x 32 pixels")


def test_what_a_model_reads_must_be_known():
    class Other(torch.nn.Module):
        main_input_name = "input_ids"

        def forward(self, inputs_embeds):
            return inputs_embeds

    with pytest.raises(ValueError, match=r"reads input_ids, .*, got Other, which reads inputs_em"):
        make_inputs(Other(), None)


def test_a_decoder_is_given_no_more_tokens_than_it_has_positions():
    decoder = transformers.BartConfig(
        vocab_size=30, d_model=16, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16,
        max_position_embeddings=9,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        config_of("donut swin"), decoder
    )
    model: Any = transformers.VisionEncoderDecoderModel(config).eval()
    inputs, _ = make_inputs(model, None)
    assert inputs["decoder_input_ids"].shape == (1, 9)
    assert measure_gain(model, inputs, rounds=1).report


def test_inputs_that_reach_nothing_that_is_adapted_are_refused():
    """As a larger model's text does, where its sounds alone are attended to so."""

    class Larger(transformers.PreTrainedModel):
        config_class = transformers.T5Config

        def __init__(self):
            super().__init__(transformers.T5Config(**SIZES))
            self.words = torch.nn.Embedding(30, 4)
            self.audio = BY_NAME["parakeet"].model()
            self.post_init()

        def forward(self, input_ids, input_features=None):
            return (self.words(input_ids),)

    said = r"must attend in adapted modules where it is given input_ids alone"
    with pytest.raises(ValueError, match=said):
        measure_gain(Larger(), {"input_ids": torch.ones(1, 3, dtype=torch.long)})


def test_an_encoder_of_images_in_a_larger_model_says_their_size():
    encoder = BY_NAME["donut swin"].model().config
    decoder = transformers.BartConfig(
        vocab_size=30, d_model=16, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16
    )
    model = transformers.VisionEncoderDecoderModel(
        transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    ).eval()
    inputs, words = make_inputs(model, None)
    assert words.endswith(" pixels")
    assert measure_gain(model, inputs, rounds=1).report
    model.config.encoder = decoder
    with pytest.raises(ValueError, match="must be of a model that has an image_size"):
        make_inputs(model, None)


def test_whatever_a_models_own_code_raises_is_said():
    model = BY_NAME["t5"].model()
    model.get_encoder().forward = lambda *_, **__: {}["no such key"]
    with pytest.raises(ValueError, match="must take random inputs, got KeyError: 'no such key'"):
        measure_gain(model, make_inputs(model, 8)[0])
