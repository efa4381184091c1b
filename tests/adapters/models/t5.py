"""T5 and its kin."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

from .case import Case, draw, tokens

SIZES = {
    "vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "dropout_rate": 0.0, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip


def draw_unscaled(model):
    """Draw, with queries that hold the scale of the scores, which these models leave out."""
    draw(model)
    for name, parameter in model.named_parameters():
        if name.endswith((".q.weight", ".query.weight")):
            with torch.no_grad():
                parameter.mul_(SIZES["d_kv"] ** -0.5)


def inputs(batch, length, padding):
    decoder = tokens(batch, length // 2 + 2, "none")["input_ids"]
    return tokens(batch, length, padding) | {"decoder_input_ids": decoder, "labels": decoder}


CASES = [
    Case(
        "t5",
        lambda: T5ForConditionalGeneration(T5Config(**SIZES)),
        inputs,
        positions=("relative_attention_bias",),
        adapted=6,
        attention="encoder.block.1.layer.0.SelfAttention",
        output="logits",
        generates=True,
        attentions="encoder_attentions",
        linears=("q", "v"),
        draw=draw_unscaled,
        dropout=lambda attention, p: setattr(attention, "dropout", p),
    ),
]
