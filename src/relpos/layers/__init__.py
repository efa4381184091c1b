"""Layers that are given a position scheme as a module."""

from .blocks import DecoderBlock, EncoderBlock
from .bottleneck import BottleneckBlock
from .cache import KeyValueCache
from .grid import GridAttention
from .multihead import MultiheadAttention
from .relative_global import RelativeGlobalAttention

__all__ = [
    "BottleneckBlock",
    "DecoderBlock",
    "EncoderBlock",
    "GridAttention",
    "KeyValueCache",
    "MultiheadAttention",
    "RelativeGlobalAttention",
]
