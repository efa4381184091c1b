"""Swin (Liu et al. 2021): its attention within windows, which projects the output too."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..adapted import Adapted
from ..heads import project_heads
from ..weights_wanted import weights_wanted
from .window_attention import attend_in_windows, bias_of_table

__all__ = ["Attention", "RelativePositionBias"]


class Attention(Adapted):
    """For `SwinAttention`; windows of another size than the table's run as before."""

    scheme = "joint bias of two axes, in windows"
    together = True
    signatures = {"forward": ("self", "hidden_states", "attention_mask", "kwargs")}
    weights_dropout = "attention_dropout"
    head_dim: int
    scaling: float
    attention_dropout: float
    relative_position_bias: Any
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        bias = self.relative_position_bias
        if hidden_states.shape[1] != bias.window_area:
            return self.original_forward(hidden_states, attention_mask, **kwargs)
        q, k, v = project_heads(
            hidden_states, self.q_proj, self.k_proj, self.v_proj, width=self.head_dim
        )
        output, weights = attend_in_windows(
            q, k, v, bias(by_offset=True), attention_mask, scale=self.scaling,
            dropout=self.attention_dropout if self.training else 0.0,
            weights=weights_wanted(kwargs),
        )  # fmt: skip
        return self.o_proj(output.flatten(2)), weights


class RelativePositionBias(Adapted):
    """For `SwinRelativePositionBias`: of all pairs, or by offset, `(h, m, n)`, for the attention.

    The attention calls it, since what has weights come and go does so when a module is called.
    """

    signatures = {"forward": ("self",)}
    together = True
    window_size: tuple[int, int]
    relative_position_bias_table: nn.Parameter

    def forward(self, *, by_offset: bool = False) -> Tensor:
        if not by_offset:
            return self.original_forward()
        return bias_of_table(self.relative_position_bias_table, self.window_size)
