"""Digits on canvases: the digit of every ink pixel, at places and on sizes never trained on.

`picture` and `show` (a picture of the user's), `page` and `figures` are imported by their full
names: they load large packages.
"""

from .canvas import TESTS, TRAINING, Canvas, Layout, canvases, compose
from .digits import Digit, DigitSplit, read_digits

__all__ = [
    "TESTS",
    "TRAINING",
    "Canvas",
    "Digit",
    "DigitSplit",
    "Layout",
    "canvases",
    "compose",
    "read_digits",
]
