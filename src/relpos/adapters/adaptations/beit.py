"""BEiT (Bao et al. 2022), the backbone of DiT, of DPT and of ZoeDepth too: biases of an image.

Each layer makes its own, or the model one for all, and adds it to the mask, with which it comes to
the attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..adapted import Adapted
from ..heads import project_heads
from ..weights_wanted import weights_wanted
from .image_bias import ImageBias, attend_to_image

__all__ = ["Attention", "Layer"]


class Attention(Adapted):
    """For `BeitAttention`; given a bias of all pairs, it runs as before."""

    scheme = "joint bias of two axes"
    signatures = {"forward": ("self", "hidden_states", "attention_mask", "kwargs")}
    masks_by_config = True
    together = True
    weights_dropout = "attention_dropout"
    config: Any
    head_dim: int
    scaling: float
    attention_dropout: float
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        config = module.config
        return config.use_relative_position_bias or config.use_shared_relative_position_bias

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        if not isinstance(attention_mask, ImageBias):
            return self.original_forward(hidden_states, attention_mask, **kwargs)
        q, k, v = project_heads(
            hidden_states, self.q_proj, self.k_proj, self.v_proj, width=self.head_dim
        )
        output, weights = attend_to_image(
            q, k, v, attention_mask, scale=self.scaling,
            dropout=self.attention_dropout if self.training else 0.0,
            weights=weights_wanted(kwargs),
        )  # fmt: skip
        return self.o_proj(output.flatten(2)), weights


class Layer(Adapted):
    """For `BeitLayer`, which runs as before: it adds the bias to the mask."""

    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "interpolate_pos_encoding", "resolution",
            "kwargs",
        )
    }  # fmt: skip
    together = True

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.relative_position_bias is not None
