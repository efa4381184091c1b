"""Layers that are given a position scheme as a module."""

from .blocks import DecoderBlock, EncoderBlock
from .cache import KeyValueCache
from .multihead import MultiheadAttention
from .relative_global import RelativeGlobalAttention

__all__ = [
    "DecoderBlock",
    "EncoderBlock",
    "KeyValueCache",
    "MultiheadAttention",
    "RelativeGlobalAttention",
]
