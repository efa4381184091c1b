"""Transformers over DNA, at the sizes of published ones, called after their convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.apart import import_apart

from .model import AdaptedModel

__all__ = ["MODELS"]


def _bins(length: int) -> dict[str, Any]:
    """Pieces of 128 base pairs, of width 1536."""
    generator = torch.Generator().manual_seed(1)
    return {"input": torch.randn(1, length, 1536, generator=generator)}


def _enformer(layers: int) -> nn.Module:
    config = import_apart("enformer_pytorch.config_enformer").EnformerConfig(depth=layers)
    return import_apart("enformer_pytorch.modeling_enformer").Enformer(config).transformer


def _borzoi(layers: int) -> nn.Module:
    config = import_apart("borzoi_pytorch.config_borzoi").BorzoiConfig(depth=layers)
    return import_apart("borzoi_pytorch.pytorch_borzoi_model").Borzoi(config).transformer


MODELS = (
    AdaptedModel(
        "enformer", "Enformer", _enformer, _bins, "bins of 128 bases", (1536,), (1536,), "1",
        "0.fn.1", {},
    ),
    AdaptedModel(
        "borzoi", "Borzoi", _borzoi, _bins, "bins of 128 bases", (4096,), (4096,), "1", "0.fn.1",
        {},
    ),
)  # fmt: skip
