"""Encoders of text."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import transformers
from torch import nn

from .model import AdaptedModel, ids

__all__ = ["MODELS"]

# Both DeBERTas.
_DEBERTA: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
    "relative_attention": True, "max_position_embeddings": 512, "position_biased_input": False,
}  # fmt: skip
# T5's kin.
_T5: dict[str, Any] = {
    "vocab_size": 1000, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_heads": 12,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip


def _deberta(layers: int) -> nn.Module:
    config = transformers.DebertaConfig(
        **_DEBERTA, num_hidden_layers=layers, pos_att_type="c2p|p2c"
    )
    return transformers.DebertaModel(config)


def _deberta_v3(layers: int) -> nn.Module:
    sizes = _DEBERTA | {
        "num_hidden_layers": layers, "pos_att_type": "p2c|c2p", "position_buckets": 256,
        "norm_rel_ebd": "layer_norm", "share_att_key": True,
    }  # fmt: skip
    return transformers.DebertaV2Model(transformers.DebertaV2Config(**sizes))


def _t5(layers: int) -> nn.Module:
    return transformers.T5EncoderModel(transformers.T5Config(**_T5, num_layers=layers))


def _umt5(layers: int) -> nn.Module:
    return transformers.UMT5EncoderModel(transformers.UMT5Config(**_T5, num_layers=layers))


def _x_transformers(kind: str, **settings: Any) -> Callable[[int], nn.Module]:
    """Encoders or decoders of one layer, of width 512."""

    def build(layers: int) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses torch.jit
            x_transformers = import_module("x_transformers")
        cls = getattr(x_transformers, kind)
        return nn.Sequential(*(cls(dim=512, depth=1, heads=8, **settings) for _ in range(layers)))

    return build


def _hidden(length: int) -> dict[str, Any]:
    """What comes into a layer."""
    generator = torch.Generator().manual_seed(1)
    return {"input": torch.randn(1, length, 512, generator=generator)}


def _longt5(layers: int) -> nn.Module:
    config = transformers.LongT5Config(
        **_T5, num_layers=layers, encoder_attention_type="local", local_radius=127
    )
    return transformers.LongT5EncoderModel(config)


def _longt5_global(layers: int) -> nn.Module:
    config = transformers.LongT5Config(
        **_T5, num_layers=layers, encoder_attention_type="transient-global", local_radius=127,
        global_block_size=16,
    )  # fmt: skip
    return transformers.LongT5EncoderModel(config)


def _mpnet(layers: int) -> nn.Module:
    config = transformers.MPNetConfig(
        vocab_size=1000, num_hidden_layers=layers, max_position_embeddings=2100
    )
    return transformers.MPNetModel(config)


def _xlnet(layers: int) -> nn.Module:
    config = transformers.XLNetConfig(
        vocab_size=1000, d_model=768, n_layer=layers, n_head=12, d_inner=3072
    )
    return transformers.XLNetModel(config)


def _vits(layers: int) -> nn.Module:
    config = transformers.VitsConfig(vocab_size=1000, num_hidden_layers=layers)
    return transformers.models.vits.modeling_vits.VitsTextEncoder(config)


def _with_mask(length: int) -> dict[str, Any]:
    # LongT5's layers see all of three blocks without one.
    return ids(length) | {"attention_mask": torch.ones(1, length, dtype=torch.long)}


def _with_padding(length: int) -> dict[str, Any]:
    return ids(length) | {"padding_mask": torch.ones(1, length, 1)}


MODELS = (
    AdaptedModel(
        "deberta_v2", "DeBERTa-v3 base", _deberta_v3, ids, "tokens",
        (128, 512, 2048), (2048, 4096, 8192), "encoder.layer.1", "attention.self", {2048: 6.0},
    ),
    AdaptedModel(
        "deberta", "DeBERTa base", _deberta, ids, "tokens",
        (128, 512, 2048), (2048, 4096), "encoder.layer.1", "attention.self", {},
    ),
    AdaptedModel(
        "t5", "Flan-T5 base, encoder", _t5, ids, "tokens",
        (128, 512, 2048), (2048, 4096, 8192), "encoder.block.1.layer.0", "SelfAttention",
        {2048: 2.7},
    ),
    AdaptedModel(
        "umt5", "UMT5 base, encoder", _umt5, ids, "tokens",
        (128, 512, 2048), (2048, 4096), "encoder.block.1.layer.0", "SelfAttention", {},
    ),
    AdaptedModel(
        "longt5", "LongT5 base, local encoder", _longt5, _with_mask, "tokens",
        (512, 2048, 8192), (8192, 16384), "encoder.block.1.layer.0", "LocalSelfAttention", {},
    ),
    AdaptedModel(
        "longt5", "LongT5 base, transient-global encoder", _longt5_global, _with_mask, "tokens",
        (512, 2048, 8192), (8192, 16384), "encoder.block.1.layer.0",
        "TransientGlobalSelfAttention", {},
    ),
    AdaptedModel(
        "mpnet", "MPNet base", _mpnet, ids, "tokens",
        (128, 512, 2048), (2048,), "encoder.layer.1", "attention.attn", {},
    ),
    AdaptedModel(
        "xlnet", "XLNet base", _xlnet, ids, "tokens",
        (128, 512, 2048), (2048, 4096), "layer.1", "rel_attn", {},
    ),
    AdaptedModel(
        "vits", "VITS, text encoder", _vits, _with_padding, "letters",
        (128, 512, 2048), (2048, 4096), "encoder.layers.1", "attention", {},
    ),
    AdaptedModel(
        "x_transformers", "x-transformers: T5 bias, encoder",
        _x_transformers("Encoder", rel_pos_bias=True), _hidden, "tokens", (512, 2048), (2048,),
        "1", "layers.0.1", {},
    ),
    AdaptedModel(
        "x_transformers", "x-transformers: ALiBi, decoder by SDPA",
        _x_transformers("Decoder", alibi_pos_bias=True, attn_flash=True), _hidden, "tokens",
        (512, 2048), (2048,), "1", "layers.0.1", {},
    ),
)  # fmt: skip
