"""Configurations with a largest distance at which buckets just end, or do not: these are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    DebertaV2Config,
    DebertaV2Model,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5EncoderModel,
    WavLMConfig,
    WavLMModel,
)

from relpos.adapters import adapt
from relpos.adapters.adaptations.buckets import NEVER_END, rows_of_buckets

from .models import wavlm
from .models.t5 import SIZES

pytestmark = [
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("float64_stays_float64"),
]


def deberta(furthest: int) -> Any:
    config = DebertaV2Config(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, relative_attention=True, position_buckets=16,
        max_relative_positions=furthest, pos_att_type=["p2c", "c2p"], share_att_key=True,
        position_biased_input=False, initializer_range=0.5,
    )  # fmt: skip
    return DebertaV2Model(config)


def t5(furthest: int, decoder: bool = False, kind: Any = (T5Config, T5EncoderModel)) -> Any:
    make_config, make = (T5Config, T5ForConditionalGeneration) if decoder else kind
    sizes = SIZES | {"relative_attention_max_distance": furthest}
    model = make(make_config(**sizes | {"relative_attention_num_buckets": 16}))
    return model.decoder if decoder else model


def wavlm_model(furthest: int) -> Any:
    return WavLMModel(
        WavLMConfig(**wavlm.SIZES | {"num_buckets": 16, "max_bucket_distance": furthest})
    )


# The model with a largest distance, and the least that it may be.
MODELS: dict[str, tuple[Callable[[int], Any], int]] = {
    "deberta_v2": (deberta, 10),
    "t5": (t5, 5),
    "t5, decoder": (lambda furthest: t5(furthest, decoder=True), 9),
    "umt5": (lambda furthest: t5(furthest, kind=(UMT5Config, UMT5EncoderModel)), 5),
    "wavlm": (wavlm_model, 5),
}


def output(model: Any) -> torch.Tensor:
    torch.manual_seed(1)
    if isinstance(model, WavLMModel):
        return model(torch.randn(2, 60).double()).last_hidden_state
    return model(torch.randint(1, 20, (2, 30))).last_hidden_state


def made(name: str, furthest: int) -> Any:
    torch.manual_seed(0)
    model = MODELS[name][0](furthest).double().eval()
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            if "relative_attention_bias" in label or "rel_attn_embed" in label:
                parameter.normal_(std=2.0)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_the_least_distance_beyond_single_ones_is_adapted_and_right(name):
    model = made(name, MODELS[name][1])
    theirs = output(model)
    report = adapt(model)
    assert report.adapted
    assert NEVER_END not in {why for _, why in report.left}
    torch.testing.assert_close(output(model), theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_a_largest_distance_among_single_ones_is_left(name):
    report = adapt(made(name, MODELS[name][1] - 2))
    assert {why for _, why in report.left} == {NEVER_END}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_flows_to_a_bucket_is_summed_before_it_is_rounded(dtype: torch.dtype):
    """Most offsets select the last one; torch's embedding would stop at 256 in bfloat16."""
    embedding = torch.nn.Embedding(4, 2, dtype=dtype)
    buckets = torch.arange(5001).clamp(max=3)
    rows = rows_of_buckets(embedding, buckets)
    assert torch.equal(rows, embedding(buckets).mT)
    rows.sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad[:, 0].tolist() == [1, 1, 1, torch.tensor(4998.0, dtype=dtype)]


def test_an_embedding_that_is_more_than_torchs_is_called():
    embedding, called = torch.nn.Embedding(4, 2), []
    embedding.register_forward_hook(lambda *_: called.append(1))
    rows_of_buckets(embedding, torch.arange(4))
    assert called
