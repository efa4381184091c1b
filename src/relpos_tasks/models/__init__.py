"""Whole models."""

from .configured import ConfiguredModel
from .decoder import DecoderConfig, DecoderLM
from .generation import sample

__all__ = ["ConfiguredModel", "DecoderConfig", "DecoderLM", "sample"]
