"""Everybody else's implementations, by scheme."""

from tests.parity.comparison import Comparison
from tests.parity.oracles import (
    absolute_keys,
    bias,
    bidirectional,
    deberta,
    grid,
    relative_logits,
    shaw,
    transformer_xl,
    window,
)

COMPARISONS: list[Comparison] = [
    *shaw.COMPARISONS,
    *bidirectional.COMPARISONS,
    *absolute_keys.COMPARISONS,
    *transformer_xl.COMPARISONS,
    *relative_logits.COMPARISONS,
    *deberta.COMPARISONS,
    *bias.COMPARISONS,
    *window.COMPARISONS,
    *grid.COMPARISONS,
]
