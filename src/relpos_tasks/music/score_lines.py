"""What a file of music holds before it is a piece: its parts on the grid of sixteenths.

How many parts there are, and whether they fit the four voices, is for whoever reads the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from jaxtyping import Bool, Int16
from numpy import ndarray

from .piece import STEPS_PER_QUARTER

__all__ = ["LONGEST", "LONGEST_BAR", "Lines", "ScoreError", "steps_in_bar"]

# A day of music, in steps at 60 quarters a minute; a longer file has a broken duration.
LONGEST = 4 * 60 * 60 * 24
# Four whole notes; a much longer bar is a broken metre, and cannot be written as MIDI.
LONGEST_BAR = 64


class ScoreError(ValueError):
    """A file of music cannot be read or used; the message names the file and what is wrong."""


@dataclass(frozen=True, eq=False)
class Lines:
    """The parts of a score on the grid, one column per part; the fields are those of `Piece`."""

    pitches: Int16[ndarray, "steps parts"]
    onsets: Bool[ndarray, "steps parts"]
    pickup: int
    steps_per_bar: int
    fifths: int


def steps_in_bar(beats: Fraction | int, unit: Fraction | int, where: str) -> int:
    """The sixteenths in a bar of a metre.

    Args:
        beats: 3 in 3/4.
        unit: 4 in 3/4.
        where: the file, for the message.

    Raises:
        ScoreError: unless it is a whole number of sixteenths in `1..LONGEST_BAR`.

    >>> steps_in_bar(3, 4, "a.mid")
    12
    """
    steps = Fraction(4 * STEPS_PER_QUARTER) * beats / unit if unit > 0 else Fraction(0)
    if steps.denominator != 1 or not 1 <= steps <= LONGEST_BAR:
        raise ScoreError(
            f"{where}: a bar must be 1..{LONGEST_BAR} whole sixteenths long, "
            f"got a metre of {beats}/{unit}"
        )
    return int(steps)
