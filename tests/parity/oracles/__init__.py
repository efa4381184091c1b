"""Everybody else's implementations, by scheme."""

from ..comparison import Comparison
from . import bidirectional, shaw, transformer_xl

COMPARISONS: list[Comparison] = [
    *shaw.COMPARISONS,
    *bidirectional.COMPARISONS,
    *transformer_xl.COMPARISONS,
]
