"""Blockwise PyTorch with its own backward: `O(L)` memory on any device."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..by_axis_logits import attention_by_axis_logits
from ..inputs import Inputs
from ..transforms import unsupported_transforms
from .ops import TILED

__all__ = ["attention", "unavailable", "unsupported"]


def unavailable() -> str | None:
    """None: plain PyTorch runs everywhere."""
    return None


def unsupported(inputs: Inputs) -> str | None:
    """Why `attention` cannot take these inputs, or None."""
    return unsupported_transforms(inputs)


def attention(inputs: Inputs) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "..."]]:
    """Output and log-sum-exp (empty unless asked for); half precision computes in float32."""
    return attention_by_axis_logits(TILED, inputs)
