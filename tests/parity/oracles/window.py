"""Swin's biases of a window, for all offsets together: a table, and a network."""

from __future__ import annotations

import torch
from transformers import SwinConfig, Swinv2Config
from transformers.models.swin.modeling_swin import SwinAttention, SwinRelativePositionBias
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

from relpos.positions import ContinuousBias, WindowBias
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


def run_swin_v2(
    shape: tuple[int, int], trained: tuple[int, int] | None = None, shifted: bool = False
) -> Trial:
    """A window that is not square, maybe another than the one it was trained on."""
    height, width = shape
    theirs = Swinv2SelfAttention(
        Swinv2Config(), MODEL, HEADS, window_size=shape, pretrained_window_size=trained or (0, 0)
    )
    theirs.relative_coords_table = theirs.relative_coords_table.double()
    theirs = randomized(theirs)
    with torch.no_grad():
        # One head's scale is beyond the clamp.
        theirs.logit_scale.copy_(torch.tensor([0.5, 2.0, 9.0])[:, None, None])
    x = hidden(height * width, batch=4)
    regions = (torch.arange(width) >= width - 2).repeat(2, height)
    regions[0] = False
    allowed = regions[:, :, None] == regions[:, None]
    q, k, v = (split(linear(x)) for linear in (theirs.query, theirs.key, theirs.value))
    scheme = ContinuousBias(HEADS, shape, pretrained_shape=trained, dtype=torch.float64)
    network = dict(theirs.continuous_position_bias_mlp.named_parameters(prefix="cpb_mlp"))
    tables = {"logit_scale": theirs.logit_scale, **network}
    mask = allowed.repeat(2, 1, 1)[:, None] if shifted else None
    ours = attended(scheme, tables, q, k, v, mask=mask, scale=1.0)
    return Trial(
        ours=merge(ours),
        theirs=theirs(x, additive(allowed) if shifted else None)[0],
        leaves={"x": x, **dict(theirs.named_parameters())},
        tables=["logit_scale", *(f"continuous_position_bias_mlp.{n}" for n in NETWORK)],
    )


NETWORK = ("0.weight", "0.bias", "2.weight")
COMPARISONS = [
    Comparison(
        "WindowBias", "SwinAttention", "transformers",
        "S q_i . k_j + B[y_i - y_j, x_i - x_j]", run_swin,
        cases=({"shape": (1, 1)}, {"shape": (5, 7)}, {"shape": (5, 7), "shifted": True}),
    ),
    Comparison(
        "ContinuousBias", "Swinv2SelfAttention", "transformers",
        "t cos(q_i, k_j) + 16 sigmoid(MLP(g(y_i - y_j), g(x_i - x_j)))", run_swin_v2,
        cases=(
            {"shape": (5, 7)},
            {"shape": (5, 7), "shifted": True},
            {"shape": (5, 7), "trained": (3, 4)},
        ),
        precision=torch.finfo(torch.float32).eps, remark="coordinates in float32",
    ),
]  # fmt: skip
