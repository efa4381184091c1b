"""What others report on the chorale grid of the literature, and how their protocol differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .piece import VOICES, Piece

__all__ = ["HUANG_2018", "Reported", "is_literature"]

# Pieces and tokens of the literature's `valid`, which is held out here.
_PIECES, _TOKENS = 76, 73_632


@dataclass(frozen=True)
class Reported:
    """Figures of others on the pieces that are held out here.

    Args:
        source: whose they are, and how they are known, as a sentence.
        nats: nats per token of each model.
        differences: how they were measured otherwise, as sentences.
    """

    source: str
    nats: Mapping[str, float]
    differences: Sequence[str]


HUANG_2018 = Reported(
    source="In grey the figures of Huang et al. (2018, Music Transformer) for these chorales, from "
    "memory of the paper's table: look them up before you quote them.",
    nats={
        "Huang et al.: Transformer, 5 layers, width 256": 0.417,
        "Huang et al.: with concatenated sinusoids": 0.398,
        "Huang et al.: with instrument labels": 0.370,
        "Huang et al.: relative, 5 layers, width 512": 0.357,
        "Huang et al.: relative, with pitch and time relations": 0.335,
    },
    differences=[
        "What is scored is the same: one token per voice and sixteenth, soprano, alto, tenor, bass "
        "(their section 4.1), on the pieces of the file's valid.",
        "For them these are validation pieces, and what was chosen by looking at them is not known "
        "to us. Here they are held out. The preset `literature` was chosen on pieces of the "
        "file's train that were set aside; the default sizes on another split of Bach's chorales, "
        "where some of these may be among those to choose on.",
        "Their models differ in more than positions; ours are of equal size and trained alike.",
        "Labels of instruments, and relations of pitch and time, tell a model what ours are not "
        "told.",
        "Of theirs it is not known to us how much context each token had, whether pieces were "
        "transposed, and whether weights were averaged.",
    ],
)


def is_literature(held_out: Sequence[Piece]) -> bool:
    """Whether pieces are those of the literature's `valid`, by their number and size.

    Args:
        held_out: the pieces.
    """
    tokens = len(VOICES) * sum(piece.steps for piece in held_out)
    return (len(held_out), tokens) == (_PIECES, _TOKENS)
