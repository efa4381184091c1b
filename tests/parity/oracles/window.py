"""Swin's bias of a window, for all offsets together."""

from __future__ import annotations

import torch
from transformers import SwinConfig
from transformers.models.swin.modeling_swin import SwinAttention, SwinRelativePositionBias

from relpos.positions import WindowBias
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, MODEL, additive, hidden, merge, split


def run_swin(shape: tuple[int, int], shifted: bool = False) -> Trial:
    """A window that is not square, and the mask of shifted windows."""
    height, width = shape
    config = SwinConfig(attn_implementation="sdpa")
    theirs = SwinAttention(config, MODEL, HEADS, window_size=height)
    theirs.relative_position_bias = SwinRelativePositionBias(HEADS, shape)
    theirs = randomized(theirs)
    x = hidden(height * width, batch=4)
    # Two windows per image: in the second one the last columns came from the other edge.
    regions = torch.stack((torch.zeros(width), torch.arange(width) >= width - 2)).repeat(1, height)
    allowed = regions[:, :, None] == regions[:, None]
    q, k, v = (split(linear(x)) for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    table = theirs.relative_position_bias.relative_position_bias_table
    sizes = (2 * height - 1, 2 * width - 1)
    # Query minus key on both axes, read backwards.
    tables = {"joint_bias": table.mT.unflatten(1, sizes).flip(1, 2)}
    mask = allowed.repeat(2, 1, 1)[:, None] if shifted else None
    ours = attended(WindowBias(HEADS, shape, dtype=torch.float64), tables, q, k, v, mask=mask)
    return Trial(
        ours=theirs.o_proj(merge(ours)),
        theirs=theirs(x, additive(allowed) if shifted else None)[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["relative_position_bias.relative_position_bias_table"],
    )


COMPARISONS = [
    Comparison(
        "WindowBias", "SwinAttention", "transformers",
        "S q_i . k_j + B[y_i - y_j, x_i - x_j]", run_swin,
        cases=({"shape": (1, 1)}, {"shape": (5, 7)}, {"shape": (5, 7), "shifted": True}),
    ),
]  # fmt: skip
