"""Nemotron's encoder step by step with its caches, and the transducer that reads it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    NemotronAsrStreamingConfig,
    NemotronAsrStreamingEncoder,
    NemotronAsrStreamingEncoderConfig,
    NemotronAsrStreamingForRNNT,
)

from relpos.adapters.adaptations import pieces

from .cache_keyword import cache_keyword
from .models.case import draw, padded
from .models.nemotron_asr_streaming import SIZES
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck
# Fields of the output; the first two are names of the same, before and since transformers 5.24.
CACHES = ("past_key_values", "cache", "padding_cache")


def encoder(**options) -> nn.Module:
    torch.manual_seed(0)
    model = NemotronAsrStreamingEncoder(NemotronAsrStreamingEncoderConfig(**SIZES | options))
    draw(model)
    return model.double().eval()


def transducer() -> nn.Module:
    torch.manual_seed(0)
    config = NemotronAsrStreamingConfig(
        vocab_size=12, decoder_hidden_size=16, num_decoder_layers=1, blank_token_id=11,
        encoder_config=SIZES,
    )  # fmt: skip
    model = NemotronAsrStreamingForRNNT(config)
    model.generation_config.decoder_start_token_id = 11
    draw(model)
    return model.double().eval()


def chunks(features: Tensor, lookahead: int) -> list[Tensor]:
    """The features as a stream gives them: a frame less in the first chunk."""
    first, others = 1 + 2 * lookahead, 2 * (lookahead + 1)
    rest = features[:, first:].split(others, dim=1)
    return [features[:, :first], *(piece for piece in rest if piece.shape[1] == others)]


def stream(model: nn.Module, features: Tensor, lookahead: int, caches: dict) -> Tensor:
    """The frames of a whole stream, encoded chunk by chunk."""
    found = []
    for piece in chunks(features, lookahead):
        output = model(piece, use_cache=True, num_lookahead_tokens=lookahead, **caches)
        caches = {name: x for name, x in output.items() if name in CACHES}
        found.append(output.last_hidden_state)
    return torch.cat(found, 1)


@pytest.mark.parametrize("lookahead", [0, 2, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_chunk_by_chunk_equals_the_original(lookahead: int, batch: int):
    features = torch.randn(batch, 90, 16, dtype=torch.float64)
    theirs, ours = (
        stream(model, features, lookahead, {}) for model in original_and_adapted(encoder())
    )
    assert theirs.shape[1] > 4 * SIZES["sliding_window"]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_chunk_by_chunk_equals_all_at_once():
    _, model = original_and_adapted(encoder())
    features = torch.randn(1, 2 * 30 - 1, 16, dtype=torch.float64)
    whole = model(features, num_lookahead_tokens=2).last_hidden_state
    torch.testing.assert_close(stream(model, features, 2, {}), whole, rtol=0, atol=1e-11)


def test_a_cache_of_all_frames_equals_the_original():
    features = torch.randn(1, 60, 16, dtype=torch.float64)
    theirs, ours = (
        stream(model, features, 2, cache_keyword(model, DynamicCache()))
        for model in original_and_adapted(encoder())
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("factor", [2, 8])
@pytest.mark.parametrize("frames", [16, 17, 40, 48, 49])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.costly(40)
def test_pieces_of_long_audio_are_exact(
    factor: int, frames: int, more: int, padding: str, monkeypatch: pytest.MonkeyPatch
):
    length = factor * frames + more
    features = torch.randn(3, length, 16, dtype=torch.float64)
    counts = torch.tensor([length, length // 2 - 5, 3])
    mask = (torch.arange(length) < counts[:, None]).long()
    mask = {"none": None, "left": mask.flip(1), "right": mask}[padding]
    model, adapted = original_and_adapted(encoder(subsampling_factor=factor))
    with torch.no_grad():
        expected = model.subsampling(features, mask)
        monkeypatch.setattr(pieces, "_PIECE", 16)
        calls = []
        adapted.subsampling.conv_in.register_forward_hook(lambda *_: calls.append(1))
        found = adapted.subsampling(features, mask)
    assert len(calls) == -(-length // (16 * factor))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gradients", [False, True])
def test_pieces_are_for_inference_alone(gradients: bool, monkeypatch: pytest.MonkeyPatch):
    _, model = original_and_adapted(encoder())
    monkeypatch.setattr(pieces, "_PIECE", 16)
    calls = {"conv_in": 0, "linear1": 0}

    def count(name: str):
        def hook(*_):
            calls[name] += 1

        return hook

    model.subsampling.conv_in.register_forward_hook(count("conv_in"))
    model.layers[0].feed_forward1.linear1.register_forward_hook(count("linear1"))
    with torch.set_grad_enabled(gradients):
        model(torch.randn(1, 2 * 40, 16, dtype=torch.float64))
    expected = {"conv_in": 1, "linear1": 1} if gradients else {"conv_in": 3, "linear1": 3}
    assert calls == expected


def test_frames_of_padding_equal_the_original_too():
    features = torch.randn(3, 80, 16, dtype=torch.float64)
    mask = torch.arange(80) < torch.tensor([80, 41, 13])[:, None]
    theirs, ours = (
        model(features, attention_mask=mask.long(), num_lookahead_tokens=2).last_hidden_state
        for model in original_and_adapted(encoder())
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_dropped_positions_are_the_originals_in_training():
    inputs = {"input_features": torch.randn(2, 40, 16, dtype=torch.float64)}
    inputs["attention_mask"] = padded(2, 40, "right")
    results = []
    for model in original_and_adapted(encoder(dropout_positions=0.3)):
        torch.manual_seed(1)
        results.append(model.train()(**inputs, num_lookahead_tokens=2).last_hidden_state)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-11)


def test_an_encoder_whose_attention_is_not_adapted_keeps_its_masks():
    model, other = original_and_adapted(encoder())
    other.layers[0].self_attn.__class__ = type(model.layers[0].self_attn)
    features = torch.randn(1, 40, 16, dtype=torch.float64)
    theirs, ours = (m(features, num_lookahead_tokens=2).last_hidden_state for m in (model, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_attention_weights_are_those_of_the_chunks():
    _, model = original_and_adapted(encoder())
    features = torch.randn(1, 41, 16, dtype=torch.float64)
    weights = model(features, num_lookahead_tokens=2, output_attentions=True).attentions[1]
    frames = torch.arange(weights.shape[-1])
    behind = frames[:, None] // 3 - frames // 3
    seen = (behind >= 0) & (behind <= (SIZES["sliding_window"] - 1) // 3)
    assert torch.equal(weights[0] > 0, seen.expand(4, -1, -1))
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.parametrize("padding", ["none", "right"])
def test_the_transducer_reads_the_same_text(padding: str):
    inputs = {"input_features": torch.randn(3, 60, 16, dtype=torch.float64)}
    if padding == "right":
        inputs["attention_mask"] = padded(3, 60, "right")
    theirs, ours = (
        model.generate(**inputs, num_lookahead_tokens=2, max_new_tokens=60).sequences
        for model in original_and_adapted(transducer())
    )
    assert (theirs != 11).sum() > 10
    assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
def test_the_transducer_reads_the_same_text_from_a_stream():
    stream = chunks(torch.randn(1, 60, 16, dtype=torch.float64), 2)
    theirs, ours = (
        model.generate(input_features=(piece for piece in stream), num_lookahead_tokens=2).sequences
        for model in original_and_adapted(transducer())
    )
    assert (theirs != 11).sum() > 10
    assert torch.equal(ours, theirs)
