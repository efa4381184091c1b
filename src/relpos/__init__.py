"""Relative position attention, on the CPU at the price of plain attention."""

from . import _torch as _torch  # first of all: where NumPy is missing it imports torch
from . import adapters, layers, positions
from ._version import __version__
from .errors import BackendError, ShapeError
from .ops import (
    attention,
    attention_weights,
    backends,
    global_local_attention,
    merge,
    register_flop_formulas,
    relative_logits,
)
from .packing import document_ids
from .ranges import (
    chunk_ranges,
    intersect_ranges,
    neighborhood_ranges,
    padding_ranges,
    prefix_ranges,
)
from .shear import relative_to_absolute, skew
from .terms import GridTerms, OffsetTable, Terms

__all__ = [
    "BackendError",
    "GridTerms",
    "OffsetTable",
    "ShapeError",
    "Terms",
    "__version__",
    "adapters",
    "attention",
    "attention_weights",
    "backends",
    "chunk_ranges",
    "document_ids",
    "global_local_attention",
    "intersect_ranges",
    "layers",
    "merge",
    "neighborhood_ranges",
    "padding_ranges",
    "positions",
    "prefix_ranges",
    "register_flop_formulas",
    "relative_logits",
    "relative_to_absolute",
    "skew",
]
