"""The handwritten digits that ship inside scikit-learn, split before anything is made of them.

1,797 images of 8 x 8 with 17 shades, from the test set of Alpaydin and Kaynak (1998, "Optical
Recognition of Handwritten Digits", UCI). In their order the first 1,200 are trained on, the next
200 watched, and the last 397 held out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

__all__ = ["SIDE", "Digit", "DigitSplit", "read_digits"]

# Pixels: all digits are as high, and at most as wide.
SIDE = 8
_TRAIN, _VALID = 1200, 200
_DARKEST = 16


@dataclass(frozen=True, eq=False)
class Digit:
    """An image without blank columns at its sides.

    Args:
        image: ink from 0 to 1.
        label: 0..9.
    """

    image: Float32[ndarray, "h w"]
    label: int


@dataclass(frozen=True, eq=False)
class DigitSplit:
    """Digits in three parts that share no image.

    Args:
        train: to learn from.
        valid: to choose settings by.
        held_out: to measure on.
    """

    train: Sequence[Digit]
    valid: Sequence[Digit]
    held_out: Sequence[Digit]

    def __str__(self) -> str:
        return (
            f"{len(self.train):,} to train, {len(self.valid):,} to watch, "
            f"{len(self.held_out):,} held out"
        )

    @property
    def digest(self) -> str:
        """Of all images and labels, so that a run cannot go on with others."""
        digest = hashlib.blake2b(digest_size=8)
        for part in (self.train, self.valid, self.held_out):
            for digit in part:
                digest.update(bytes([digit.label]) + np.ascontiguousarray(digit.image).tobytes())
        return digest.hexdigest()

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about its data."""
        return {"name": "scikit-learn's digits", "digest": self.digest, "split": str(self)}


def read_digits() -> DigitSplit:
    """The images inside scikit-learn."""
    from sklearn.datasets import load_digits  # noqa: PLC0415

    loaded: Any = load_digits()
    digits = [
        _trimmed(image, int(label))
        for image, label in zip(loaded.images, loaded.target, strict=True)
    ]
    watched = _TRAIN + _VALID
    return DigitSplit(digits[:_TRAIN], digits[_TRAIN:watched], digits[watched:])


def _trimmed(image: ndarray, label: int) -> Digit:
    ink = np.flatnonzero(image.any(axis=0))
    kept = image[:, ink[0] : ink[-1] + 1] / _DARKEST
    return Digit(kept.astype(np.float32), label)
