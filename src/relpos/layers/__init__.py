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

# Other packages' names lie in `relpos.adapters`, which builds on this package.
_OF_ADAPTERS = ("RelativeGlobalAttention",)


def __getattr__(name: str) -> object:
    if name in _OF_ADAPTERS:
        return getattr(import_module("relpos.adapters"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_ADAPTERS})
