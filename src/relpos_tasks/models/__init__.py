"""Whole models."""

from .batched_search import beam_search_all
from .beam_search import BeamSearch, Hypothesis, beam_search
from .configured import ConfiguredModel
from .decoder import DecoderConfig, DecoderLM
from .encoder_decoder import DecodingCache, EncoderDecoder, EncoderDecoderConfig
from .generation import sample
from .positions import POSITIONS, PositionScheme, PositionSizes

__all__ = [
    "POSITIONS",
    "BeamSearch",
    "ConfiguredModel",
    "DecoderConfig",
    "DecoderLM",
    "DecodingCache",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Hypothesis",
    "PositionScheme",
    "PositionSizes",
    "beam_search",
    "beam_search_all",
    "sample",
]
