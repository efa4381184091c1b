"""Layers that are given a position scheme as a module."""

from importlib import import_module

from .blocks import DecoderBlock, EncoderBlock
from .bottleneck import BottleneckBlock
from .cache import KeyValueCache
from .grid import GridAttention
from .multihead import MultiheadAttention

__all__ = [
    "BottleneckBlock",
    "DecoderBlock",
    "EncoderBlock",
    "GridAttention",
    "KeyValueCache",
    "MultiheadAttention",
]


def __getattr__(name: str) -> object:
    # Other packages' names lie in `relpos.adapters`, which builds on this package.
    if name == "RelativeGlobalAttention":
        return getattr(import_module("relpos.adapters"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
