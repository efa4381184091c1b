"""Models without relative positions, which attend by `attn_implementation="relpos"`.

Their family is none of those that `adapt` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

from .model import AdaptedModel, ids

__all__ = ["WITHOUT_RELATIVE"]

_TOKENS: dict[str, Any] = {"vocab_size": 1000, "pad_token_id": 0}


def _model(name: str, sizes: dict[str, Any]) -> Callable[[int], nn.Module]:
    """How to build the model `name` of transformers with so many layers."""

    def build(layers: int) -> nn.Module:
        config = getattr(transformers, f"{name}Config")(
            **_TOKENS, **sizes, num_hidden_layers=layers
        )
        config.use_cache = False
        return getattr(transformers, f"{name}Model")(config)

    return build


_BERT = _model("Bert", {"max_position_embeddings": 8192})
_MODERNBERT = _model("ModernBert", {"local_attention": 128, "global_attn_every_n_layers": 3})
_LLAMA = _model("Llama", {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 32_768,
})  # fmt: skip
_GEMMA2 = _model("Gemma2", {})
_GEMMA3 = _model("Gemma3Text", {
    "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
})  # fmt: skip
# Its attention as published; experts are few.
_GPT_OSS = _model("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 4})


def _padded(length: int, *, left: bool) -> dict[str, Any]:
    """Two texts, of which one is half as long."""
    tokens = torch.ones(2, length, dtype=torch.long)
    half = length // 2
    tokens[1, slice(half) if left else slice(length - half, None)] = 0
    return {"input_ids": ids(length)["input_ids"].expand(2, -1), "attention_mask": tokens}


_left, _right = partial(_padded, left=True), partial(_padded, left=False)

WITHOUT_RELATIVE = (
    AdaptedModel(
        "", "BERT base", _BERT, ids, "tokens",
        (128, 512, 2048), (2048, 8192), "encoder.layer.1", "attention", {},
    ),
    AdaptedModel(
        "", "BERT base, padding", _BERT, _right, "tokens",
        (128, 512, 2048), (2048, 8192), "encoder.layer.1", "attention", {},
    ),
    AdaptedModel(
        "", "ModernBERT base, window of 128", _MODERNBERT, ids, "tokens",
        (128, 1024, 8192), (8192,), "layers.1", "attn", {},
    ),
    AdaptedModel(
        "", "Llama 3.2 1B", _LLAMA, ids, "tokens",
        (128, 2048), (2048, 8192), "layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "", "Llama 3.2 1B, padding", _LLAMA, _left, "tokens",
        (128, 2048), (2048, 8192), "layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "", "Gemma 3 1B, window of 512", _GEMMA3, ids, "tokens",
        (128, 2048, 8192), (8192,), "layers.0", "self_attn", {},
    ),
    AdaptedModel(
        "", "Gemma 2 2B, softcap", _GEMMA2, ids, "tokens",
        (128, 2048), (2048, 8192), "layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "", "GPT-OSS 20B, sinks", _GPT_OSS, ids, "tokens",
        (128, 2048), (2048,), "layers.1", "self_attn", {},
    ),
    AdaptedModel(
        "", "GPT-OSS 20B, sinks, window of 128", _GPT_OSS, ids, "tokens",
        (128, 2048), (), "layers.0", "self_attn", {},
    ),
)  # fmt: skip
