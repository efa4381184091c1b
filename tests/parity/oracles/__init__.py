"""Everybody else's implementations, by scheme."""

from tests.parity.comparison import Comparison
from tests.parity.oracles import (
    absolute_keys,
    axial_rotary,
    bias,
    bidirectional,
    computed_bias,
    deberta,
    grid,
    longformer,
    ranges,
    relative_logits,
    rotary,
    shaw,
    sliding_window,
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
    *rotary.COMPARISONS,
    *axial_rotary.COMPARISONS,
    *computed_bias.COMPARISONS,
    *sliding_window.COMPARISONS,
    *longformer.COMPARISONS,
    *ranges.COMPARISONS,
]
