"""Queries, keys and values whose biases lie beside the projection, as BEiT's and Swin v2's do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["project_biased"]


def project_biased(module: Any, x: Tensor) -> Tensor:
    """`(b, i, 3hd)`, with biases if there are any.

    `qkv` is called as a module, where timm most often reads its weight: so LoRA acts on it.

    Args:
        module: with `qkv` and, if there are biases, `q_bias`, `v_bias` and, as timm's, `k_bias`.
        x: `(b, i, e)`.
    """
    projected = module.qkv(x)
    if getattr(module, "q_bias", None) is None:
        return projected
    key_bias = getattr(module, "k_bias", None)
    if key_bias is None:
        key_bias = torch.zeros_like(module.q_bias)
    bias = torch.cat([module.q_bias, key_bias, module.v_bias])
    return projected + bias.to(projected.dtype)
