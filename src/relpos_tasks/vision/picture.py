"""A picture of the user's as ink on paper, as the model was trained on it."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64
from numpy import ndarray
from PIL import Image, ImageOps, UnidentifiedImageError

from ..files import read_whole
from .digits import SIDE

__all__ = ["Picture", "read_picture"]

# Every pixel reads from every other: so many take seconds.
_MOST_PIXELS = 128 * 128
# Of a file, before it is made smaller.
_MOST_IN_FILE = 50_000_000
# Share of the strongest ink below which a pixel is paper: photographs and JPEG are not even.
_PAPER = 0.15


@dataclass(frozen=True, eq=False)
class Picture:
    """Ink from 0 (paper) to 1, and what was done to get it.

    Args:
        image: ink of each pixel.
        words: what was done, in a line.
    """

    image: Float32[ndarray, "m n"]
    words: str


def read_picture(path: str | Path, *, digit_height: int = SIDE) -> Picture:
    """A picture of digits, dark on light or light on dark, in grey and at the model's scale.

    What most pixels are is taken for paper; colours and transparency become grey on white.

    Args:
        path: of a file that Pillow reads (PNG, JPEG, ...).
        digit_height: how many pixels high its digits are; the picture is scaled so that they are
            8, as those of training were.

    Raises:
        ValueError: if it is no picture, too large or too small at that scale, or all of one shade.
        OSError: if the file cannot be read.
    """
    if digit_height < 1:
        raise ValueError(f"read_picture: digit_height must be at least 1, got {digit_height}")
    picture = _opened(Path(path))
    before = picture.size
    picture = _scaled(picture, digit_height, path)
    shades = np.asarray(picture, np.float64)
    # A photograph's paper has many shades: the middle one stands for it.
    paper, darkest, lightest = np.median(shades), shades.min(), shades.max()
    if not np.isfinite(shades).all() or lightest - darkest < 1e-3 * max(abs(lightest), 1e-9):
        raise ValueError(
            f"{path}: must show ink on paper, got a picture of one shade where digits of "
            f"{digit_height} pixels (--digit-height) are scaled to {SIDE}"
        )
    dark_ink = paper - darkest >= lightest - paper
    image = _ink(paper - shades if dark_ink else shades - paper)
    size = f"{before[0]} x {before[1]} pixels"
    if picture.size != before:
        size += f", scaled to {picture.width} x {picture.height}"
    return Picture(image, f"{size}, {'dark on light' if dark_ink else 'light on dark'}")


def _opened(path: Path) -> Image.Image:
    """The picture in shades of grey, the right way up."""
    content = read_whole(path)
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content)) as file:
            # Pillow warns of pictures that would take much memory; here they are refused.
            warnings.simplefilter("ignore")
            if file.width * file.height > _MOST_IN_FILE:
                raise ValueError(
                    f"{path}: must have at most {_MOST_IN_FILE:,} pixels, "
                    f"got {file.width} x {file.height}"
                )
            upright = ImageOps.exif_transpose(file)
            if upright.mode in ("F", "I") or upright.mode.startswith("I;16"):
                # Converted to 8 bits, they would be cut off at 255.
                return Image.fromarray(np.asarray(upright, np.float32))
            colored = upright.convert("RGBA")
            paper = Image.new("RGBA", colored.size, "white")
            return Image.alpha_composite(paper, colored).convert("L")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        why = "no picture that Pillow knows" if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(f"{path}: cannot be read as a picture: {why}") from error


def _scaled(picture: Image.Image, digit_height: int, path: str | Path) -> Image.Image:
    """The picture at a scale at which its digits are as high as those of training."""
    width, height = (max(1, round(side * SIDE / digit_height)) for side in picture.size)
    if width * height > _MOST_PIXELS:
        raise ValueError(
            f"{path}: must have at most {_MOST_PIXELS:,} pixels where digits are {SIDE} pixels "
            f"high, got {width} x {height}; say how high they are with --digit-height, or cut it"
        )
    if (width, height) == picture.size:
        return picture
    # Smaller pixels are means over areas, as the digits of training were made.
    smaller = digit_height > SIDE
    how = Image.Resampling.BOX if smaller else Image.Resampling.BICUBIC
    return picture.resize((width, height), how)


def _ink(strength: Float64[ndarray, "m n"]) -> Float32[ndarray, "m n"]:
    """From 0 where there is paper to 1 where ink is strongest."""
    share = strength / strength.max()
    return ((share - _PAPER) / (1 - _PAPER)).clip(0, 1).astype(np.float32)
