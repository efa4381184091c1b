"""Four-part music on a grid of sixteenths, as Huang et al. 2018 (section 4.1) represent chorales.

We add the onsets, which that grid leaves out: a repeated note and a long one look the same in
pitches alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Int16
from numpy import ndarray

__all__ = [
    "SILENCE",
    "STEPS_PER_QUARTER",
    "VOICES",
    "Piece",
    "strikes_of",
]

STEPS_PER_QUARTER = 4
VOICES = ("soprano", "alto", "tenor", "bass")
SILENCE = -1


@dataclass(frozen=True, eq=False)
class Piece:
    """Four voices on a grid of sixteenths: what sounds in each step, and what is struck there.

    Args:
        name: what to call the piece, e.g. `"bwv269"`.
        pitches: MIDI pitches, 60 is middle C, -1 is silence; columns are S A T B.
        onsets: True where a note is struck, False where it is held or the voice is silent.
        pickup: steps of the bar that are missing before step 0, so that step `t` stands at
            `(t + pickup) % steps_per_bar` of its bar.
        steps_per_bar: steps in a whole bar, 16 in 4/4.
        fifths: sharps of the key signature; flats are negative.
        has_onsets: False where onsets are not known; `onsets` is then False everywhere.

    Raises:
        ValueError: if the arrays have another shape or dtype, or contradict each other.

    >>> chord = np.array([[72, 67, 64, 48]] * 2, np.int16)
    >>> struck = np.array([[True] * 4, [False] * 4])
    >>> Piece("C major", chord, struck, steps_per_bar=16).steps
    2
    """

    name: str
    pitches: Int16[ndarray, "steps 4"]
    onsets: Bool[ndarray, "steps 4"]
    pickup: int = 0
    steps_per_bar: int = 16
    fifths: int = 0
    has_onsets: bool = True

    def __post_init__(self) -> None:
        for argument, array, dtype in (
            ("pitches", self.pitches, np.int16),
            ("onsets", self.onsets, np.bool_),
        ):
            if array.ndim != 2 or array.shape[1] != len(VOICES) or array.dtype != dtype:
                raise ValueError(
                    f"Piece: {argument} must be (steps, 4) {dtype.__name__}, "
                    f"got {array.shape} {array.dtype}"
                )
        if len(self.pitches) != len(self.onsets):
            raise ValueError(
                "Piece: onsets must have as many steps as pitches, "
                f"got {len(self.onsets)} and {len(self.pitches)}"
            )
        if self.pitches.size and not (self.pitches.min() >= SILENCE and self.pitches.max() <= 127):
            raise ValueError(
                "Piece: pitches must be MIDI pitches 0..127 or -1, "
                f"got {self.pitches.min()}..{self.pitches.max()}"
            )
        if self.steps_per_bar < 1:
            raise ValueError(f"Piece: steps_per_bar must be positive, got {self.steps_per_bar}")
        if not 0 <= self.pickup < self.steps_per_bar:
            raise ValueError(
                f"Piece: pickup must be in 0..{self.steps_per_bar - 1}, got {self.pickup}"
            )
        self._check_onsets()

    def _check_onsets(self) -> None:
        if not self.has_onsets:
            if self.onsets.any():
                raise ValueError("Piece: onsets must be False everywhere where has_onsets is False")
            return
        changed = strikes_of(self.pitches)
        for wrong, rule in (
            (self.onsets & (self.pitches == SILENCE), "must be False where a voice is silent"),
            (changed & ~self.onsets, "must be True where a voice begins another pitch"),
        ):
            if wrong.any():
                step, voice = np.argwhere(wrong)[0]
                raise ValueError(
                    f"Piece: onsets {rule}, got {not rule.startswith('must be True')} "
                    f"in step {step} of the {VOICES[voice]}"
                )

    @property
    def steps(self) -> int:
        """How many sixteenths the piece lasts."""
        return len(self.pitches)

    @property
    def strikes(self) -> Bool[ndarray, "steps 4"]:
        """Where to strike a note: the onsets, or each change of pitch where they are not known."""
        return self.onsets if self.has_onsets else strikes_of(self.pitches)

    @property
    def bar_steps(self) -> Int[ndarray, "steps"]:
        """Where in its bar each step lies, 0..steps_per_bar-1."""
        return (np.arange(self.steps) + self.pickup) % self.steps_per_bar


def strikes_of(pitches: Int16[ndarray, "steps voices"]) -> Bool[ndarray, "steps voices"]:
    """Where a voice begins another pitch than the one before: the fewest onsets that fit.

    Args:
        pitches: MIDI pitches, -1 is silence.

    Returns:
        True where a note must be struck.

    >>> strikes_of(np.array([[60], [60], [-1], [60]], np.int16))[:, 0].tolist()
    [True, False, False, True]
    """
    before = np.full_like(pitches, SILENCE)
    before[1:] = pitches[:-1]
    return (pitches != before) & (pitches != SILENCE)
