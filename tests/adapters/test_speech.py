"""What only families of speech have: tables handed on, whole models, wrapped projections."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from torch import Tensor
from transformers import SpeechT5Config, SpeechT5ForTextToSpeech, VitsConfig, VitsModel
from transformers.models.speecht5.modeling_speecht5 import SpeechT5Encoder

from relpos.adapters import Adapted, adapt

from .models import speecht5, vits, wavlm
from .models.case import draw, tokens

pytestmark = pytest.mark.no_typecheck


def test_wavlm_takes_a_bias_of_all_pairs_as_the_original_does():
    model: Any = wavlm.CASES[1].model(torch.float64)
    attention = model.encoder.layers[0].attention
    x = torch.randn(2, 21, 32, dtype=torch.float64)
    bias = torch.randn(8, 21, 21, dtype=torch.float64)
    expected = attention(x, position_bias=bias)
    adapt(model)
    output, weights, handed_on = attention(x, position_bias=bias)
    assert torch.equal(output, expected[0])
    assert torch.equal(weights, expected[1])
    assert handed_on is bias


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_lora_on_the_projections_of_wavlm_is_in_force_though_the_original_passes_it_by():
    lora = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    inputs = wavlm.inputs(2, 33, "none")

    def output(*, adapted: bool, merged: bool) -> Tensor:
        model: Any = wavlm.CASES[1].model()
        torch.manual_seed(1)
        model = peft.get_peft_model(model, lora).eval()
        model = model.merge_and_unload() if merged else model
        if adapted:
            adapt(model)
        return model(**inputs).last_hidden_state.detach()

    meant = output(adapted=False, merged=True)
    assert not torch.allclose(output(adapted=False, merged=False), meant, atol=1e-2)
    torch.testing.assert_close(output(adapted=True, merged=False), meant, rtol=1e-4, atol=1e-4)


def test_speecht5_takes_keys_of_all_pairs_as_the_original_does():
    model: Any = speecht5.CASES[0].model(torch.float64)
    attention = model.speecht5.encoder.wrapped_encoder.layers[0].attention
    x = torch.randn(2, 21, 32, dtype=torch.float64)
    keys = torch.randn(21, 21, 8, dtype=torch.float64)
    expected, _ = attention(x, position_bias=keys)
    adapt(model)
    assert torch.equal(attention(x, position_bias=keys)[0], expected)


def test_the_decoder_of_speecht5_stays_as_it_is():
    model: Any = speecht5.CASES[0].model()
    adapt(model)
    names = [name for name, module in model.named_modules() if isinstance(module, Adapted)]
    assert names
    assert not [name for name in names if "decoder" in name]


def test_speech_that_speecht5_makes_of_text_is_the_originals():
    torch.manual_seed(0)
    config = SpeechT5Config(**speecht5.SIZES, speaker_embedding_dim=8, num_mel_bins=6)
    model: Any = SpeechT5ForTextToSpeech(config)
    draw(model)
    model.eval()
    text, speaker = tokens(2, 33, "right"), torch.randn(2, 8)

    def speech() -> Tensor:
        torch.manual_seed(1)  # its prenet drops even now
        return model.generate(**text, speaker_embeddings=speaker, maxlenratio=0.5)

    expected = speech()
    adapt(model)
    assert isinstance(model.speecht5.encoder.wrapped_encoder, SpeechT5Encoder)
    torch.testing.assert_close(speech(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_the_waveform_of_vits_is_the_originals(padding: str):
    torch.manual_seed(0)
    config = VitsConfig(
        **vits.SIZES, upsample_initial_channel=16, upsample_rates=(2, 2),
        upsample_kernel_sizes=(4, 4), spectrogram_bins=9, wavenet_kernel_size=3,
        posterior_encoder_num_wavenet_layers=2, duration_predictor_filter_channels=8,
    )  # fmt: skip
    model: Any = VitsModel(config).double().eval()
    text = tokens(2, 33, padding)

    def waveform() -> Tensor:
        torch.manual_seed(1)
        return model(**text).waveform.detach()

    expected = waveform()
    assert float(expected.std()) > 1e-3
    adapt(model)
    torch.testing.assert_close(waveform(), expected, rtol=1e-9, atol=1e-9)
