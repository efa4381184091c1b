"""Performances as event tokens (Oore et al. 2018, section 3.2; used by Huang et al. 2018).

128 events strike a pitch, 128 end it, 100 move on in time by 10 ms to 1 s, and 32 set how hard the
notes after them are struck. A velocity is written where it changes alone, and a longer silence as
several shifts, the longest first. We begin each performance with a token of its own. Where several
events fall into the same step, notes end before others begin, from the lowest pitch to the highest.

MidiTok's `MIDILike` has the same events, but counts time in beats and puts a velocity behind every
note, so that its sequences are longer than those whose nats per token the papers report; our tests
hold the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64
from numpy import ndarray

from ..tokens import BEGIN
from .performance import STEPS_PER_SECOND, Performance, performance_of

__all__ = [
    "LONGEST_SHIFT",
    "NOTE_OFF",
    "NOTE_ON",
    "SHIFT",
    "SIZE",
    "VELOCITY",
    "EventVocabulary",
    "Events",
    "decode",
    "encode",
    "events_of",
    "seconds_of",
    "steps_after",
    "token_name",
    "transposed",
]

# Steps of the longest time shift: one second.
LONGEST_SHIFT = 100
_PITCHES = 128
_BINS = 32
_VELOCITIES_IN_BIN = 4
# The first token of each kind; `SHIFT + n - 1` moves on by n steps.
NOTE_ON = BEGIN + 1
NOTE_OFF = NOTE_ON + _PITCHES
SHIFT = NOTE_OFF + _PITCHES
VELOCITY = SHIFT + LONGEST_SHIFT
SIZE = VELOCITY + _BINS
# Of notes before the first velocity: mezzo-forte.
_USUAL_VELOCITY = 64


@dataclass(frozen=True, eq=False)
class Events:
    """All but the time shifts of a performance, in the order of its tokens.

    Args:
        times: of each event, in steps of 10 ms, rising.
        tokens: note-on, note-off and velocity tokens.
    """

    times: Int32[ndarray, "events"]
    tokens: Int64[ndarray, "events"]

    def part(self, first: int, last: int) -> Events:
        """The events from `first` to before `last`."""
        return Events(self.times[first:last], self.tokens[first:last])

    @property
    def lengths(self) -> Int64[ndarray, "events"]:
        """How many tokens each event takes with the shifts that lead to it."""
        gaps = np.diff(self.times, prepend=self.times[:1]).astype(np.int64)
        return -(-gaps // LONGEST_SHIFT) + 1

    def with_shifts(self, *, stretch: float = 1.0) -> Int64[ndarray, "tokens"]:
        """All tokens; what leads to the first event is left out.

        Args:
            stretch: 1.05 plays slower by a twentieth; each event moves to the nearest step.
        """
        times = np.rint(self.times * stretch).astype(np.int32)
        events = Events(times, self.tokens) if stretch != 1 else self
        ends = np.cumsum(events.lengths)
        found = np.full(ends[-1] if len(ends) else 0, SHIFT + LONGEST_SHIFT - 1, np.int64)
        rest = np.diff(times, prepend=times[:1]) % LONGEST_SHIFT
        found[ends[rest > 0] - 2] = SHIFT + rest[rest > 0] - 1
        found[ends - 1] = self.tokens
        return found


@dataclass(frozen=True)
class EventVocabulary:
    """The tokens as an object beside the chorales' `Vocabulary`; there is one kind alone."""

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return SIZE

    def encode(self, performance: Performance) -> Int64[ndarray, "tokens"]:
        """The performance as tokens, with the begin token in front.

        Args:
            performance: any.
        """
        return encode(performance)


def events_of(performance: Performance) -> Events:
    """The events of a performance.

    Args:
        performance: any.
    """
    notes = np.arange(performance.notes)
    pitches = performance.pitches.astype(np.int64)
    bins = (performance.velocities.astype(np.int64) - 1) // _VELOCITIES_IN_BIN
    louder = np.diff(bins, prepend=-1) != 0
    times = np.concatenate([performance.ends, performance.starts[louder], performance.starts])
    tokens = np.concatenate([NOTE_OFF + pitches, VELOCITY + bins[louder], NOTE_ON + pitches])
    # Within a step: ends by pitch, then notes in their order, each behind its velocity.
    begins = np.arange(len(times)) >= performance.notes
    rank = np.concatenate([pitches, 2 * notes[louder], 2 * notes + 1])
    order = np.lexsort((rank, begins, times))
    return Events(times[order], tokens[order])


def encode(performance: Performance) -> Int64[ndarray, "tokens"]:
    """The performance as tokens, with the begin token in front.

    Args:
        performance: any; silence before its first note is left out.

    >>> from .performance import performance_of
    >>> tokens = encode(performance_of("A", [0], [150], [69], [80]))
    >>> [token_name(token) for token in tokens]
    ['begin', 'velocity 77-80', 'A4 on', '1000 ms', '500 ms', 'A4 off']
    """
    return np.append(np.int64(BEGIN), events_of(performance).with_shifts())


def decode(tokens: Int64[ndarray, "tokens"], *, name: str = "performance") -> Performance:
    """The notes of any tokens.

    A note that is struck again ends there, one that is never ended lasts until the last event, and
    an end of what does not sound is passed over. Each note is struck with the middle of its
    velocity's range.

    Args:
        tokens: in `0..SIZE - 1`; begin tokens are passed over.
        name: of the performance.

    Raises:
        ValueError: if a token is out of range.

    >>> from .performance import performance_of
    >>> once = encode(performance_of("A", [0, 20], [150, 70], [69, 60], [80, 30]))
    >>> (encode(decode(once)) == once).all()
    np.True_
    """
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < SIZE):
        raise ValueError(
            f"decode: tokens must be in 0..{SIZE - 1}, got {tokens.min()}..{tokens.max()}"
        )
    sounding: dict[int, tuple[int, int]] = {}
    notes: list[tuple[int, int, int, int]] = []
    velocity = _USUAL_VELOCITY
    now = 0

    def release(pitch: int) -> None:
        if pitch in sounding:
            start, struck = sounding.pop(pitch)
            notes.append((start, now, pitch, struck))

    for now, token in zip(steps_after(tokens).tolist(), tokens.tolist(), strict=True):
        if token >= VELOCITY:
            velocity = (token - VELOCITY) * _VELOCITIES_IN_BIN + _VELOCITIES_IN_BIN // 2
        elif NOTE_OFF <= token < SHIFT:
            release(token - NOTE_OFF)
        elif NOTE_ON <= token < NOTE_OFF:
            release(token - NOTE_ON)
            sounding[token - NOTE_ON] = now, velocity
    for pitch in list(sounding):
        release(pitch)
    starts, ends, pitches, velocities = np.array(notes, np.int64).reshape(-1, 4).T
    return performance_of(name, starts, ends, pitches, velocities)


def steps_after(tokens: Int64[ndarray, "tokens"]) -> Int64[ndarray, "tokens"]:
    """The time after each token, in steps of 10 ms.

    Args:
        tokens: any tokens.
    """
    shifts = (tokens >= SHIFT) & (tokens < VELOCITY)
    return np.cumsum(np.where(shifts, tokens - SHIFT + 1, 0))


def seconds_of(tokens: Int64[ndarray, "tokens"]) -> float:
    """How long some tokens last.

    Args:
        tokens: any tokens.

    >>> seconds_of(np.array([SHIFT + 99, NOTE_ON + 60, SHIFT + 49]))
    1.5
    """
    return int(steps_after(tokens)[-1:].sum()) / STEPS_PER_SECOND


def transposed(tokens: Int64[ndarray, "tokens"], semitones: int) -> Int64[ndarray, "tokens"]:
    """The tokens with every note some semitones higher.

    Args:
        tokens: any tokens.
        semitones: negative is lower; no pitch may leave 0..127.
    """
    return np.where((tokens >= NOTE_ON) & (tokens < SHIFT), tokens + semitones, tokens)


def token_name(token: int) -> str:
    """What a token means, in words.

    Args:
        token: in `0..SIZE - 1`.

    >>> token_name(NOTE_OFF + 60), token_name(SHIFT), token_name(VELOCITY + 31)
    ('C4 off', '10 ms', 'velocity 125-127')
    """
    from ..melody import note_name  # noqa: PLC0415

    if token == BEGIN:
        return "begin"
    if token < NOTE_OFF:
        return f"{note_name(token - NOTE_ON)} on"
    if token < SHIFT:
        return f"{note_name(token - NOTE_OFF)} off"
    if token < VELOCITY:
        return f"{10 * (token - SHIFT + 1)} ms"
    lowest = (token - VELOCITY) * _VELOCITIES_IN_BIN + 1
    return f"velocity {lowest}-{min(lowest + _VELOCITIES_IN_BIN - 1, 127)}"
