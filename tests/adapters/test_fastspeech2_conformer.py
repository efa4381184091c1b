"""FastSpeech2-Conformer as a whole: speech, its losses, attention weights, and odd arguments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import FastSpeech2ConformerConfig, FastSpeech2ConformerModel

from .models.case import draw, padded
from .models.fastspeech2_conformer import SIZES
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck


@pytest.fixture(autouse=True)
def frames_in_float64(monkeypatch):
    # The frames between encoder and decoder are made in `torch.float`, whatever the model is in.
    monkeypatch.setattr(torch, "float", torch.float64)


def models(**options) -> tuple[nn.Module, nn.Module]:
    """A model and an adapted copy of it."""
    torch.manual_seed(0)
    model = FastSpeech2ConformerModel(FastSpeech2ConformerConfig(**SIZES | options))
    draw(model)
    # Some frames for each token.
    model.duration_predictor.linear.bias.data.fill_(1.0)
    return original_and_adapted(model.double().eval())


def texts(padding: str) -> dict[str, Tensor]:
    mask = padded(3, 21, padding)
    ids = torch.randint(1, 50, (3, 21))
    return {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}


def labels(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    durations = torch.randint(1, 4, (3, 21)) * inputs.get("attention_mask", 1)
    spectrogram = torch.randn(3, int(durations.sum(1).max()), 8).double()
    for sequence, count in zip(spectrogram, durations.sum(1), strict=True):
        sequence[count:] = -100.0
    pitch, energy = torch.randn(2, 3, 21, 1).double()
    return {
        "duration_labels": durations, "spectrogram_labels": spectrogram,
        "pitch_labels": pitch, "energy_labels": energy,
    }  # fmt: skip


@pytest.mark.parametrize("padding", ["none", "right"])
def test_the_spectrogram_and_weights_are_those_of_the_original(padding: str):
    inputs = texts(padding)
    theirs, ours = (model(**inputs, output_attentions=True) for model in models())
    assert theirs.spectrogram.shape[1] > 21
    torch.testing.assert_close(ours.spectrogram, theirs.spectrogram, rtol=0, atol=1e-10)
    for name in ("encoder_attentions", "decoder_attentions"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-10)


def test_the_loss_in_training_is_that_of_the_original():
    inputs = texts("right")
    inputs |= labels(inputs)
    theirs, ours = (model.train()(**inputs).loss for model in models())
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)


def test_dropped_positions_are_those_of_the_original():
    # Dropped once for the batch, by the encoder.
    options = {"encoder_positional_dropout_rate": 0.3, "decoder_positional_dropout_rate": 0.3}
    inputs, losses = texts("none"), []
    inputs |= labels(inputs)
    for model in models(**options):
        torch.manual_seed(1)
        losses.append(model.train()(**inputs).loss)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-10, atol=0)


def test_positions_of_each_sequence_are_left_to_the_original():
    model, other = (m.encoder.conformer_layers[0].self_attn for m in models())
    x, positions = torch.randn(2, 9, 32).double(), torch.randn(2, 17, 32).double()
    assert torch.equal(other(x, None, positions)[0], model(x, None, positions)[0])


def test_a_mask_of_all_pairs_is_refused_as_by_the_original():
    _, model = models()
    with pytest.raises(ValueError, match=r"Attention mask should be of size \(2, 1, 9\)"):
        model.encoder.conformer_layers[0].self_attn(
            torch.randn(2, 9, 32).double(), torch.ones(2, 9, 9), torch.randn(1, 17, 32).double()
        )
