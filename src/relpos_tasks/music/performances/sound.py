"""A performance as sound: strings of a few harmonics that are struck and die away."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from ..wav import SAMPLE_RATE, wav_from
from .performance import STEPS_PER_SECOND, Performance

__all__ = ["wav_of"]

# Strengths of the harmonics 1, 2, ...
_HARMONICS = (1.0, 0.6, 0.35, 0.25, 0.12, 0.08, 0.05, 0.03)
# Seconds in which middle C falls to 1/e while it is held; an octave higher, half as many.
_DECAY = 1.2
# Seconds of a string's beginning, and of its end under the damper.
_ATTACK = 0.004
_DAMPED = 0.12
# A string is not heard for longer, in seconds.
_LONGEST_NOTE = 8.0


def wav_of(performance: Performance) -> bytes:
    """The performance as sound: 16-bit mono at 22.05 kHz, strings of up to eight harmonics.

    Args:
        performance: any.

    Returns:
        The bytes of a `.wav` file whose loudest sample is 0.9 of the full scale.
    """
    samples = np.zeros(int((performance.seconds + _DAMPED) * SAMPLE_RATE) + 2, np.float32)
    lengths = np.minimum(
        (performance.ends - performance.starts) / STEPS_PER_SECOND, _LONGEST_NOTE - _DAMPED
    )
    for pitch in np.unique(performance.pitches).tolist():
        chosen = np.flatnonzero(performance.pitches == pitch)
        string = _string(pitch, float(lengths[chosen].max()) + _DAMPED)
        for note in chosen.tolist():
            held = int(lengths[note] * SAMPLE_RATE)
            sound = string[: held + int(_DAMPED * SAMPLE_RATE)].copy()
            sound[held:] *= np.linspace(1, 0, len(sound) - held, dtype=np.float32)
            begin = int(performance.starts[note]) * SAMPLE_RATE // STEPS_PER_SECOND
            # Twice as loud for every 25 steps of velocity or so, as synthesisers have it.
            loudness = (int(performance.velocities[note]) / 127) ** 2
            samples[begin : begin + len(sound)] += loudness * sound
    return wav_from(samples)


def _string(pitch: int, seconds: float) -> Float[ndarray, "samples"]:
    """A string that is struck and never damped."""
    frequency = 440 * 2 ** ((pitch - 69) / 12)
    time = np.arange(int(seconds * SAMPLE_RATE) + 1, dtype=np.float32) / SAMPLE_RATE
    decay = _DECAY * 2 ** ((60 - pitch) / 12)
    sound = sum(
        (
            # Higher harmonics die away sooner.
            strength * np.sin(2 * np.pi * n * frequency * time) * np.exp(-(n**0.5) * time / decay)
            for n, strength in enumerate(_HARMONICS, start=1)
            if n * frequency < SAMPLE_RATE / 2
        ),
        np.zeros_like(time),
    )
    return np.minimum(1, time / _ATTACK) * sound
