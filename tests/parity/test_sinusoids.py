"""The waves that other implementations of Transformer-XL make are ours, within float32."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from torch import Tensor
from transformers import ParakeetEncoderConfig, Wav2Vec2BertConfig
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderRelPositionalEncoding
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    Wav2Vec2BertRelPositionalEmbedding,
)

from relpos.positions.sinusoids import sinusoids

with contextlib.redirect_stdout(io.StringIO()):
    from espnet.nets.pytorch_backend.transformer.embedding import RelPositionalEncoding

LENGTH, WIDTH = 65, 24


def parakeet(x: Tensor) -> Tensor:
    return ParakeetEncoderRelPositionalEncoding(ParakeetEncoderConfig(hidden_size=WIDTH))(x)


def wav2vec2_bert(x: Tensor) -> Tensor:
    return Wav2Vec2BertRelPositionalEmbedding(Wav2Vec2BertConfig(hidden_size=WIDTH))(x)


def espnet(x: Tensor) -> Tensor:
    return RelPositionalEncoding(WIDTH, 0.0)(x)[1]


@pytest.mark.parametrize("theirs", [parakeet, wav2vec2_bert, espnet])
def test_sinusoids_of_speech_encoders_are_ours(theirs):
    got = theirs(torch.zeros(1, LENGTH, WIDTH))[0].double()
    ours = sinusoids(torch.arange(LENGTH - 1, -LENGTH, -1), WIDTH, dtype=torch.float64)
    # An angle of p radians is off by p roundings of its frequency, and by one more of its own.
    assert got.shape == ours.shape
    assert (got - ours).abs().max() <= 2 * LENGTH * torch.finfo(torch.float32).eps
