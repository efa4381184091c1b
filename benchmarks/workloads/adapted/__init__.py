"""Models of transformers at the sizes of published ones, with random weights and few layers."""

from . import decoders, images, speech, text
from .model import AdaptedModel, LongInput, draw

__all__ = ["LONG_INPUTS", "MODELS", "AdaptedModel", "LongInput", "draw", "find_model"]

MODELS = (*speech.MODELS, *text.MODELS, *images.MODELS, *decoders.MODELS)

LONG_INPUTS = (
    LongInput("one hour of speech", "Parakeet (width 1024)", 45_000, 24, 24),
    LongInput("a document of 32k tokens", "DeBERTa-v3 base", 32_768, 12, 12),
    # All of its layers would take hours.
    LongInput("one hour of audio", "w2v-BERT 2.0", 180_000, 1, 24),
)


def find_model(name: str) -> AdaptedModel:
    """The model of this name."""
    return next(model for model in MODELS if model.name == name)
