"""Models at the sizes of published ones, with random weights and few layers."""

from . import decoders, dna, image_libraries, images, speech, speech_libraries, text
from .model import AdaptedModel, LongInput, cast, draw, on_device
from .without_relative import WITHOUT_RELATIVE

__all__ = [
    "HALF_LONG_INPUTS",
    "HALF_MODELS",
    "LONG_INPUTS",
    "MODELS",
    "WITHOUT_RELATIVE",
    "AdaptedModel",
    "LongInput",
    "cast",
    "draw",
    "find_long_input",
    "find_model",
    "on_device",
]

MODELS = (
    *speech.MODELS,
    *speech_libraries.MODELS,
    *text.MODELS,
    *images.MODELS,
    *image_libraries.MODELS,
    *decoders.MODELS,
    *dna.MODELS,
)

LONG_INPUTS = (
    LongInput("one hour of speech", "Parakeet (width 1024)", 45_000, 24, 24),
    LongInput("a document of 32k tokens", "DeBERTa-v3 base", 32_768, 12, 12),
    # All of its layers would take hours.
    LongInput("one hour of audio", "w2v-BERT 2.0", 180_000, 1, 24),
)

# In bfloat16.
HALF_MODELS = ("Parakeet (width 1024)", "w2v-BERT 2.0", "DeBERTa-v3 base")
HALF_LONG_INPUTS = (
    LongInput(
        "one hour of speech, bfloat16", "Parakeet (width 1024)", 45_000, 24, 24, dtype="bfloat16"
    ),
)


def find_long_input(name: str) -> LongInput:
    """The long input of this name."""
    return next(each for each in (*LONG_INPUTS, *HALF_LONG_INPUTS) if each.name == name)


def find_model(name: str) -> AdaptedModel:
    """The model of this name."""
    return next(model for model in (*MODELS, *WITHOUT_RELATIVE) if model.name == name)
