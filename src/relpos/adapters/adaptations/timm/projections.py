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
        module: of timm, with `qkv`, `q_bias`, `k_bias` and `v_bias`.
        x: `(b, i, e)`.
    """
    projected = module.qkv(x)
    if module.q_bias is None:
        return projected
    bias = torch.cat([module.q_bias, module.k_bias, module.v_bias])
    return projected + bias.to(projected.dtype)
