"""Samples as the bytes of a WAV file."""

from __future__ import annotations

import io
import wave

import numpy as np
from jaxtyping import Float
from numpy import ndarray

__all__ = ["SAMPLE_RATE", "wav_from"]

SAMPLE_RATE = 22_050


def wav_from(samples: Float[ndarray, "samples"]) -> bytes:
    """A sound as 16-bit mono at 22.05 kHz whose loudest sample is 0.9 of the full scale.

    Args:
        samples: of any loudness.

    Returns:
        The bytes of a `.wav` file.
    """
    loudest = np.abs(samples).max(initial=0.0) or 1.0
    numbers = np.round(samples * (0.9 * 32767 / loudest)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(SAMPLE_RATE)
        sound.writeframes(numbers.tobytes())
    return file.getvalue()
