"""Torch's attention, and models that hold it, for the tests of added positions."""

import torch
from torch import nn

from relpos.positions import Shaw

__all__ = [
    "CAUSAL", "CROSS", "PADDING", "SELF", "B", "D", "E", "H", "Holder", "N", "attention", "drawn",
    "shaw", "transformer",
]  # fmt: skip

# Of `attention`: sequences, their length, the width, the heads and theirs.
B, N, E, H, D = 2, 7, 12, 3, 4
CAUSAL = torch.ones(N, N, dtype=torch.bool).triu(1)
PADDING = torch.arange(N) >= torch.tensor([[5], [N]])


def shaw(heads, head_dim):
    return Shaw(head_dim, max_distance=3, heads=heads)


def transformer(**arguments):
    torch.manual_seed(0)
    arguments = {"dim_feedforward": 8, "dropout": 0.0, "batch_first": True} | arguments
    return nn.Transformer(8, 2, 2, 2, dtype=torch.float64, **arguments).eval()


SELF = [f"{side}.layers.{n}.self_attn" for side in ("encoder", "decoder") for n in (0, 1)]
CROSS = [f"decoder.layers.{n}.multihead_attn" for n in (0, 1)]


class Holder(nn.Module):
    """Attention of the given names, side by side."""

    def __init__(self, **attentions):
        super().__init__()
        for name, attention in attentions.items():
            self.add_module(name, attention)


def attention(**arguments):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(E, H, **{"batch_first": True, "dtype": torch.float64} | arguments)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def drawn(model):
    """Tables that are not zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, table in model.named_parameters():
            if "position." in name:
                table.copy_(torch.randn_like(table))
    return model
