"""XLNet: with segments and without."""

import torch
from transformers import XLNetConfig, XLNetForTokenClassification, XLNetModel

from .case import Case, tokens

SIZES = {
    "vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "dropout": 0.0,
}  # fmt: skip


def inputs(batch, length, padding):
    """Three segments, which begin and end elsewhere in each sequence, and labels of real tokens."""
    given = tokens(batch, length, padding)
    labels = torch.randint(0, 2, (batch, length))
    if padding != "none":
        labels = labels.masked_fill(given["attention_mask"] == 0, -100)
    bounds = torch.randint(3, length - 3, (batch, 2)).sort().values
    segments = (torch.arange(length)[None, :, None] >= bounds[:, None]).sum(-1)
    return given | {"token_type_ids": segments, "labels": labels}


CASES = [
    Case(
        "xlnet",
        lambda: XLNetForTokenClassification(XLNetConfig(**SIZES)),
        inputs,
        positions=("rel_attn.r", "rel_attn.seg_embed"),
        adapted=2,
        attention="transformer.layer.1.rel_attn",
        output="logits",
        linears=("layer_1", "layer_2"),
        dropout=lambda attention, p: setattr(attention.dropout, "p", p),
    ),
    Case(
        "xlnet without segments",
        lambda: XLNetModel(XLNetConfig(**SIZES, clamp_len=7)),
        tokens,
        positions=("rel_attn.r",),
        adapted=2,
        attention="layer.1.rel_attn",
        first=False,
    ),
]
