"""relpos in code that is not its own: models adapted in place, and others' modules by their names.

`adapt` has the relative attention of a model computed by `relpos.attention`, and `restore` undoes
it. The other classes have the arguments and state dicts of modules that others published.
`add_positions` gives every `torch.nn.MultiheadAttention` of a model a position scheme to train.
`register_attn_implementation` lets others attend by `relpos.attention`, as an implementation.
"""

from .adapt import adapt, restore
from .adapted import Adapted
from .ai_summer import AbsPosEmb1D, RelPosEmb1D, RelPosEmb2D
from .implementation import register_attn_implementation
from .multihead import add_positions, remove_positions
from .natten import (
    NeighborhoodAttention1D,
    NeighborhoodAttention2D,
    NeighborhoodAttention3D,
    neighborhood_attention,
)
from .registry import Family, families, register
from .relative_global import RelativeGlobalAttention
from .report import Report

__all__ = [
    "AbsPosEmb1D",
    "Adapted",
    "Family",
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "NeighborhoodAttention3D",
    "RelPosEmb1D",
    "RelPosEmb2D",
    "RelativeGlobalAttention",
    "Report",
    "adapt",
    "add_positions",
    "families",
    "neighborhood_attention",
    "register",
    "register_attn_implementation",
    "remove_positions",
    "restore",
]
