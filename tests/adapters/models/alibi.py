"""BLOOM, Falcon and MPT: ALiBi, whose slopes are no parameters."""

from typing import Any

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    MptConfig,
    MptForCausalLM,
)  # fmt: skip

from .case import Case, tokens


def inputs(batch, length, padding):
    found = tokens(batch, length, padding)
    labels = found["input_ids"].clone()
    if "attention_mask" in found:
        mask = found["attention_mask"]
        # Logits of padding, which the token behind it is the label of, are not compared.
        labels[(mask * mask.roll(1, 1)) == 0] = -100
    return found | {"labels": labels}


# Five heads: their slopes are no powers of two.
BLOOM: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 40, "n_layer": 2, "n_head": 5, "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
MPT: dict[str, Any] = {
    "vocab_size": 50, "d_model": 40, "n_layers": 2, "n_heads": 5, "max_seq_len": 2100,
    "expansion_ratio": 2, "use_cache": True,
}  # fmt: skip
FALCON: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5,
    "alibi": True, "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip


def flat_bloom(model):
    model.transformer.build_alibi_tensor = lambda mask, heads, dtype: torch.where(
        mask, torch.zeros((), dtype=dtype), -torch.inf
    ).expand(-1, heads, -1, -1)


def flat_mpt(model):
    model.transformer.build_mpt_alibi_tensor = lambda heads, length, **_: torch.zeros(
        1, heads, 1, length
    )


def flat_falcon(model):
    for layer in model.transformer.h:
        layer.self_attention.register_forward_pre_hook(zero_alibi, with_kwargs=True)


def zero_alibi(module, args, kwargs):
    names = ("alibi", "attention_mask")
    return args, kwargs | {name: kwargs[name] * 0 for name in names if kwargs[name] is not None}


def case(name, build, flat, **options):
    return Case(
        name,
        build,
        inputs,
        positions=(),
        without_relative=flat,
        adapted=2,
        output="logits",
        long=2048,
        generates=True,
        **options,
    )


def falcon(name, first=False, **options):
    return case(
        name,
        lambda: FalconForCausalLM(FalconConfig(**FALCON, **options)),
        flat_falcon,
        attention="transformer.h.1.self_attention",
        linears=("query_key_value", "dense"),
        dropout=lambda attention, p: setattr(attention.attention_dropout, "p", p),
        first=first,
        without=("static cache",),
    )


CASES = [
    case(
        "bloom",
        lambda: BloomForCausalLM(BloomConfig(**BLOOM)),
        flat_bloom,
        attention="transformer.h.1.self_attention",
        linears=("query_key_value", "dense"),
        dropout=lambda attention, p: setattr(attention.attention_dropout, "p", p),
    ),
    case(
        "bloom in slices",
        lambda: BloomForCausalLM(BloomConfig(**BLOOM, pretraining_tp=2, slow_but_exact=True)),
        flat_bloom,
        attention="transformer.h.1.self_attention",
        first=False,
    ),
    case(
        "mpt",
        lambda: MptForCausalLM(MptConfig(**MPT)),
        flat_mpt,
        attention="transformer.blocks.1.attn",
        linears=("Wqkv", "out_proj"),
        dropout=lambda attention, p: setattr(attention, "attn_dropout_p", p),
    ),
    case(
        "mpt clipped",
        lambda: MptForCausalLM(
            MptConfig(**MPT, attn_config={"clip_qkv": 0.7, "softmax_scale": 0.5})
        ),
        flat_mpt,
        attention="transformer.blocks.1.attn",
        first=False,
    ),
    falcon("falcon", first=True),
    falcon("falcon with heads of their own", multi_query=False),
    falcon("falcon with groups", new_decoder_architecture=True, num_kv_heads=1),
]
