"""Music as it was played: notes in time, without bars, beats or voices.

Times are whole steps of 10 ms, the shortest time shift of Oore et al. 2018 (section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, UInt8
from numpy import ndarray

__all__ = ["STEPS_PER_SECOND", "Performance", "performance_of"]

STEPS_PER_SECOND = 100


@dataclass(frozen=True, eq=False)
class Performance:
    """Notes sorted by start and then by pitch; of each pitch, one note sounds at a time.

    `performance_of` makes one of any notes.

    Args:
        name: what to call it, e.g. `"2004/schubert.mid"`.
        starts: when each note is struck, in steps of 10 ms.
        ends: when it ends, in the same steps: after its start, and no later than the next note of
            its pitch begins.
        pitches: MIDI pitches, 60 is middle C.
        velocities: how hard each note is struck, 1..127.

    Raises:
        ValueError: if the arrays differ in length or dtype, or break one of these rules.

    >>> performance_of("fifth", [0, 0], [50, 100], [60, 67], [64, 64]).seconds
    1.0
    """

    name: str
    starts: Int32[ndarray, "notes"]
    ends: Int32[ndarray, "notes"]
    pitches: UInt8[ndarray, "notes"]
    velocities: UInt8[ndarray, "notes"]

    def __post_init__(self) -> None:
        for argument, dtype in (
            ("starts", np.int32),
            ("ends", np.int32),
            ("pitches", np.uint8),
            ("velocities", np.uint8),
        ):
            array = getattr(self, argument)
            if array.shape != self.starts.shape or array.ndim != 1 or array.dtype != dtype:
                raise ValueError(
                    f"Performance: {argument} must be ({len(self.starts)},) {dtype.__name__}, "
                    f"got {array.shape} {array.dtype}"
                )
        for wrong, rule in (
            (self.starts[:1] < 0, "starts must not be negative"),
            (self.ends <= self.starts, "ends must be after the starts"),
            (self.pitches > 127, "pitches must be in 0..127"),
            ((self.velocities < 1) | (self.velocities > 127), "velocities must be in 1..127"),
        ):
            if wrong.any():
                raise ValueError(f"Performance: {rule}, not so at note {int(wrong.argmax())}")
        if (np.lexsort((self.pitches, self.starts)) != np.arange(self.notes)).any():
            raise ValueError("Performance: notes must be sorted by start and pitch")
        by_pitch = np.lexsort((self.starts, self.pitches))
        same = self.pitches[by_pitch][1:] == self.pitches[by_pitch][:-1]
        if (same & (self.ends[by_pitch][:-1] > self.starts[by_pitch][1:])).any():
            raise ValueError("Performance: a note must end before the next one of its pitch")

    @property
    def notes(self) -> int:
        """How many notes there are."""
        return len(self.starts)

    @property
    def seconds(self) -> float:
        """Until the last note ends."""
        return int(self.ends.max(initial=0)) / STEPS_PER_SECOND


def performance_of(
    name: str, starts: object, ends: object, pitches: object, velocities: object
) -> Performance:
    """A performance of any notes.

    A note lasts at least a step, and ends where the next note of its pitch begins. Of several notes
    of one pitch that begin together, the longest stays.

    Args:
        name: what to call it.
        starts: in steps of 10 ms, as whole numbers, like the next ones in any sequence or array.
        ends: in steps.
        pitches: MIDI pitches.
        velocities: 1..127.

    Raises:
        ValueError: if a start is negative, or a pitch or a velocity out of range.

    >>> performance_of("trill", [0, 5], [90, 9], [60, 60], [64, 64]).ends.tolist()
    [5, 9]
    """
    columns = np.stack([np.asarray(x, np.int64) for x in (pitches, starts, ends, velocities)])
    for column, argument, least, most in (
        (columns[0], "pitches", 0, 127),
        (columns[1], "starts", 0, None),
        (columns[3], "velocities", 1, 127),
    ):
        wrong = (column < least) | (column > (np.inf if most is None else most))
        if wrong.any():
            rule = f"at least {least}" if most is None else f"in {least}..{most}"
            raise ValueError(f"performance_of: {argument} must be {rule}, got {column[wrong][0]}")
    pitch, start, end, velocity = columns[:, np.lexsort(columns[::-1])]
    last = np.append((pitch[1:] != pitch[:-1]) | (start[1:] != start[:-1]), True)[: len(pitch)]
    pitch, start, end, velocity = (column[last] for column in (pitch, start, end, velocity))
    end = np.maximum(end, start + 1)
    same = pitch[1:] == pitch[:-1]
    end[:-1] = np.where(same, np.minimum(end[:-1], start[1:]), end[:-1])
    order = np.lexsort((pitch, start))
    return Performance(
        name,
        start[order].astype(np.int32),
        end[order].astype(np.int32),
        pitch[order].astype(np.uint8),
        velocity[order].astype(np.uint8),
    )
