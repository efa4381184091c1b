"""Inputs that are made up for a check: each model takes them."""

from __future__ import annotations

import pytest
import torch
import transformers

from relpos_tasks.adapting import make_inputs, measure_gain
from tests.adapters.models import BY_NAME, CASES
from tests.adapters.models.case import Case

pytestmark = pytest.mark.no_typecheck

PRETRAINED = [case for case in CASES if case.first and case.pretrained]
# Of the parts of a model, or with more than one input: refused in words.
REFUSED = {
    "gemma3n audio": "which reads audio_mel",
    "gemma4 audio": "num_mel_bins",
    "granite_speech": "vocab_size",
    "DeepseekOcr2SamVisionConfig eager": "vocab_size",
    "pix2struct": "which reads flattened_patches",
    "seggpt": "prompt_masks",
}


@pytest.mark.parametrize("case", PRETRAINED, ids=lambda case: case.name)
def test_a_model_takes_the_inputs_that_are_made_for_it(case: Case):
    model = case.model()
    if case.name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[case.name]):
            make_inputs(model, None)
        return
    if case.name == "granite_speech5":
        # Its frames are stacked, which no configuration says.
        with pytest.raises(ValueError, match=r"GraniteSpeech5.* must take random inputs, got"):
            measure_gain(model, make_inputs(model, 40)[0])
        return
    length = None if model.main_input_name == "pixel_values" else 1200
    if model.main_input_name == "input_ids":
        length = 30
    inputs, words = make_inputs(model, length)
    assert length is None or words.startswith(f"{length} ")
    with torch.no_grad():
        outputs = model(**inputs)
    assert any(isinstance(x, torch.Tensor) for x in outputs.values())


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
    with pytest.raises(ValueError, match="must take random inputs, got 'no such key'"):
        measure_gain(model, make_inputs(model, 8)[0])
