"""Whole models."""

from .configured import ConfiguredModel
from .decoder import DecoderConfig, DecoderLM
from .generation import sample
from .positions import POSITIONS, PositionScheme, PositionSizes

__all__ = [
    "POSITIONS",
    "ConfiguredModel",
    "DecoderConfig",
    "DecoderLM",
    "PositionScheme",
    "PositionSizes",
    "sample",
]
