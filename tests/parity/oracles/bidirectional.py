"""The 2L - 1 form elsewhere: one row of a feature map, and AI Summer's one dimension."""

from __future__ import annotations

from math import sqrt

import torch
from bottleneck_transformer_pytorch.bottleneck_transformer_pytorch import Attention
from torch.func import functional_call

from relpos.positions import Bidirectional
from relpos.positions import RelPosEmb1D as OurRelPosEmb1D
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, hidden
from tests.parity.oracles.self_attention_cv import RelPosEmb1D


def run_bottleneck(length: int) -> Trial:
    """On a map of one row the offset along the height is always 0, which moves no weight."""
    theirs = randomized(
        Attention(dim=MODEL, fmap_size=(1, length), heads=HEADS, dim_head=WIDTH, rel_pos_emb=True)
    )
    x = hidden(length)
    image = x.mT[:, :, None]
    q, k, v = (
        part.flatten(2).unflatten(1, (HEADS, WIDTH)).mT
        for part in theirs.to_qkv(image).chunk(3, dim=1)
    )
    position = Bidirectional(WIDTH, length, dtype=torch.float64)
    ours = attended(position, {"keys": theirs.pos_emb.rel_width[None]}, q, k, v)
    return Trial(
        ours=ours.mT.flatten(1, 2)[:, :, None],
        theirs=theirs(image),
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["pos_emb.rel_width"],
    )


def run_self_attention_cv(length: int) -> Trial:
    theirs = randomized(RelPosEmb1D(length, WIDTH))
    q, k, v = (
        hidden(length, width=WIDTH, batch=2 * HEADS, seed=seed).unflatten(0, (2, HEADS))
        for seed in range(3)
    )
    # Their term is added unscaled.
    tables = {"keys": theirs.rel_pos_emb[None] * sqrt(WIDTH)}
    position = Bidirectional(WIDTH, length, dtype=torch.float64)
    scores = q @ k.mT / sqrt(WIDTH) + theirs(q)
    return Trial(
        ours=attended(position, tables, q, k, v),
        theirs=scores.softmax(-1) @ v,
        leaves={"q": q, "k": k, "v": v, "rows": theirs.rel_pos_emb},
        tables=["rows"],
    )


def run_namesake(length: int) -> Trial:
    """The class of relpos with their name and parameter, and its dense logits."""
    theirs = randomized(RelPosEmb1D(length, WIDTH))
    q = hidden(length, width=WIDTH, batch=2 * HEADS).unflatten(0, (2, HEADS))
    rows = dict(theirs.named_parameters())
    ours = OurRelPosEmb1D(length, WIDTH, dtype=torch.float64)
    return Trial(
        ours=functional_call(ours, rows, (q,), strict=True),
        theirs=theirs(q),
        leaves={"q": q, **rows},
        tables=["rel_pos_emb"],
    )


LENGTHS = ({"length": 1}, {"length": 33}, {"length": 65})
COMPARISONS = [
    Comparison(
        "Bidirectional", "Attention", "bottleneck-transformer-pytorch",
        "S q_i . (k_j + R[j - i])", run_bottleneck, LENGTHS,
        remark="a map of one row",
    ),
    Comparison(
        "Bidirectional", "RelPosEmb1D", "self-attention-cv",
        "S q_i . k_j + q_i . R[j - i]", run_self_attention_cv, LENGTHS,
    ),
    Comparison(
        "RelPosEmb1D", "RelPosEmb1D", "self-attention-cv", "q_i . R[j - i]",
        run_namesake, LENGTHS, remark="the logits alone",
    ),
]  # fmt: skip
