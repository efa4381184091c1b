"""Causal language models, over a whole input."""

from __future__ import annotations

from typing import Any

import transformers
from torch import nn

from .model import AdaptedModel, ids

__all__ = ["MODELS"]


def _bloom(layers: int) -> nn.Module:
    config = transformers.BloomConfig(
        vocab_size=1000, hidden_size=1024, n_layer=layers, n_head=16, use_cache=False
    )
    return transformers.BloomModel(config)


def _falcon(layers: int) -> nn.Module:
    config = transformers.FalconConfig(
        vocab_size=1000, hidden_size=2048, num_hidden_layers=layers, num_attention_heads=32,
        alibi=True, multi_query=False, parallel_attn=False, bias=True, use_cache=False,
    )  # fmt: skip
    return transformers.FalconModel(config)


def _mpt(layers: int) -> nn.Module:
    config = transformers.MptConfig(
        vocab_size=1000, d_model=2048, n_heads=16, n_layers=layers, max_seq_len=8192,
        use_cache=False,
    )  # fmt: skip
    return transformers.MptModel(config)


def _inkling(layers: int) -> nn.Module:
    # Its attention as published; experts are few and small.
    config = transformers.InklingTextConfig(
        vocab_size=1000, unpadded_vocab_size=1000, num_hidden_layers=layers,
        layer_types=["hybrid"] * layers, mlp_layer_types=["dense"] * layers,
        intermediate_size=1024, moe_intermediate_size=64, n_routed_experts=4,
        num_experts_per_tok=2,
    )  # fmt: skip
    return transformers.InklingForCausalLM(config)


def _without_cache(length: int) -> dict[str, Any]:
    return ids(length) | {"use_cache": False}


MODELS = (
    AdaptedModel(
        "bloom", "BLOOM 560m", _bloom, ids, "tokens",
        (128, 512, 2048), (2048, 8192), "h.1", "self_attention", {},
    ),
    AdaptedModel(
        "falcon", "Falcon RW 1B", _falcon, ids, "tokens",
        (128, 512, 2048), (2048, 8192), "h.1", "self_attention", {},
    ),
    AdaptedModel(
        "mpt", "MPT 1B", _mpt, ids, "tokens",
        (128, 512, 2048), (2048, 8192), "blocks.1", "attn", {},
    ),
    AdaptedModel(
        "inkling", "Inkling, full attention", _inkling, _without_cache, "tokens",
        (128, 2048), (2048, 4096), "model.layers.1", "self_attn", {},
    ),
)  # fmt: skip
