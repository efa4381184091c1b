"""Everybody else's implementations, by scheme."""

from ..comparison import Comparison
from . import absolute_keys, bias, bidirectional, relative_logits, shaw, transformer_xl

COMPARISONS: list[Comparison] = [
    *shaw.COMPARISONS,
    *bidirectional.COMPARISONS,
    *absolute_keys.COMPARISONS,
    *transformer_xl.COMPARISONS,
    *relative_logits.COMPARISONS,
    *bias.COMPARISONS,
]
