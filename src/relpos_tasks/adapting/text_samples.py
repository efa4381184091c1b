"""Random tokens for a model of texts or pages, and for the decoder of any."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

__all__ = ["decoder_inputs", "text_inputs"]

# Tokens that a text has where nothing else is asked for.
_USUAL = 2048
# Of a model that chooses between answers.
_CHOICES = 2
# How many tokens a model takes, in configurations of those where no table says so: MPT, SpeechT5.
_LIMITS = ("max_seq_len", "max_text_positions")


def text_inputs(
    model: Any, length: int | None, generator: torch.Generator
) -> tuple[dict[str, Tensor], str]:
    """Tokens, in boxes on a page where a model reads those, and how many there are in words.

    Args:
        model: of transformers.
        length: in tokens; None: 2048, or all that the model has positions for.
        generator: of the random numbers.

    Raises:
        ValueError: if it has no position for so many, or no vocabulary.
    """
    most = _positions(model)
    if length is not None and most is not None and length > most:
        raise ValueError(
            f"--length: must be at most {most} for {type(model).__name__}, which has no position "
            f"for more tokens, got {length}"
        )
    count = length or min(_USUAL, most or _USUAL)
    tokens, words = _tokens(model.config, count, generator), f"{count} tokens"
    if type(model).__name__ in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values():
        tokens = tokens.expand(_CHOICES, -1)[None]
        words = f"{count} tokens for each of {_CHOICES} choices"
    inputs = {"input_ids": tokens}
    if "bbox" in inspect.signature(model.forward).parameters:
        corners = torch.rand(2, 1, count, 2, generator=generator)
        inputs["bbox"] = torch.cat([corners.amin(0), corners.amax(0)], -1)
    return inputs, words


def decoder_inputs(model: Any, count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """What the decoder reads, where there is one: tokens, or frames of a spectrogram.

    Args:
        model: of transformers.
        count: of tokens or frames.
        generator: of the random numbers.

    Raises:
        ValueError: if it has no vocabulary.
    """
    taken = inspect.signature(model.forward).parameters
    if not getattr(model.config, "is_encoder_decoder", False):
        return {}
    if "decoder_input_ids" in taken:
        decoder = getattr(model.config, "decoder", None)  # of a model that was put together
        most = getattr(decoder, "max_position_embeddings", count)
        return {"decoder_input_ids": _tokens(model.config, min(count, most), generator)}
    if "decoder_input_values" in taken:
        shape = (1, count, model.config.num_mel_bins)
        return {"decoder_input_values": torch.randn(shape, generator=generator)}
    return {}


def _tokens(config: Any, count: int, generator: torch.Generator) -> Tensor:
    """Words alone, and the token that ends a text behind them: some classifiers look for it."""
    try:
        text = config.get_text_config()
    except ValueError as error:  # of several that there are
        raise ValueError(f"adapt: a check must be of a model of one text, got {error}") from error
    if not hasattr(text, "vocab_size"):
        raise ValueError("adapt: a check of token ids must be of a model that has a vocab_size")
    words = torch.tensor(sorted({*range(text.vocab_size)} - _special(config, text)))
    tokens = words[torch.randint(len(words), (1, count), generator=generator)]
    end = getattr(text, "eos_token_id", None)
    if isinstance(end, int) and 0 <= end < text.vocab_size:
        tokens[:, -1] = end
    return tokens


def _special(*configs: Any) -> set[int]:
    """The tokens that are no words: ends, padding, places of images and sounds."""
    named = [value for config in configs for value in vars(config).items()]
    ids = [id for name, id in named if name.endswith(("_token_id", "_token_index"))]
    return {id for id in ids if isinstance(id, int)}


def _positions(model: nn.Module) -> int | None:
    """How many tokens a model takes; None: any number."""
    config: Any = model.config
    limits = [limit for name in _LIMITS if isinstance(limit := getattr(config, name, None), int)]
    tables = [
        module.num_embeddings - (module.padding_idx + 1 if module.padding_idx is not None else 0)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] == "position_embeddings"
    ]
    return min([*limits, *tables], default=None)
