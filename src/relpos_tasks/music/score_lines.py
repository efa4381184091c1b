"""What a file of music holds before it is a piece: its parts on the grid of sixteenths.

How many parts there are, and whether they fit the four voices, is for whoever reads the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Int16
from numpy import ndarray

from .piece import SILENCE, STEPS_PER_QUARTER, Piece

__all__ = ["LONGEST", "LONGEST_BAR", "Line", "Lines", "ScoreError", "steps_in_bar"]

# A day of music, in steps at 60 quarters a minute; a longer file has a broken duration.
LONGEST = 4 * 60 * 60 * 24
# Four whole notes; a much longer bar is a broken metre, and cannot be written as MIDI.
LONGEST_BAR = 64


class ScoreError(ValueError):
    """A file of music cannot be read or used; the message names the file and what is wrong."""


@dataclass(frozen=True, eq=False)
class Lines:
    """The parts of a score on the grid, one column per part.

    Args:
        pitches: as those of `Piece`, as are the following.
        onsets: True where a note is struck.
        pickup: steps of the bar that are missing before step 0.
        steps_per_bar: steps in a whole bar.
        fifths: sharps of the key signature; flats are negative.
        unsung: notes of each part that the grid has no room for.
    """

    pitches: Int16[ndarray, "steps parts"]
    onsets: Bool[ndarray, "steps parts"]
    pickup: int
    steps_per_bar: int
    fifths: int
    unsung: tuple[int, ...]

    def piece(self, name: str) -> Piece:
        """The parts as a piece.

        Args:
            name: of the piece.
        """
        return Piece(name, self.pitches, self.onsets, self.pickup, self.steps_per_bar, self.fifths)


class Line:
    """A part as it is written on the grid; a note takes the place of what is there.

    Args:
        steps: sixteenths.
    """

    def __init__(self, steps: int) -> None:
        self.pitches = np.full(steps, SILENCE, np.int16)
        self.onsets = np.zeros(steps, np.bool_)
        # Which note a step is of; 0 is none.
        self._owners = np.zeros(steps, np.int32)
        self._notes = 0

    def write(self, first: int, last: int, pitch: int, *, tied: bool = False) -> None:
        """Write a note; of one that is over before it begins only the count is kept.

        Args:
            first: the step where it is struck.
            last: the step where it is over.
            pitch: MIDI pitch.
            tied: whether it goes on with the note before, and is not struck.
        """
        self._notes += not (tied and self._notes)
        if first < last:
            self.pitches[first:last], self._owners[first:last] = pitch, self._notes
            self.onsets[first:last] = False
            self.onsets[first] = not tied

    @property
    def unsung(self) -> int:
        """Notes that were written and have no step."""
        return self._notes - len(np.unique(self._owners[self._owners > 0]))


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
