"""Whole models."""

from .decoder import DecoderConfig, DecoderLM
from .generation import sample

__all__ = ["DecoderConfig", "DecoderLM", "sample"]
