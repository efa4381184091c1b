"""What Swin and its kin share: attention in windows of an image, with a bias for each offset.

    s_ij = scale * q_i . k_j + B[y_j - y_i, x_j - x_i] + mask_ij      (y, x): row and column

Liu et al. 2021, equation 4; Swin v2 (Liu et al. 2022, equation 2) takes the cosine of queries
and keys, and computes B. Windows are pieces of the batch. The mask, the same for each
image, keeps apart what a shift has brought into one window.
"""

from __future__ import annotations

from math import log
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from ...terms import GridTerms
from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import project_heads

__all__ = [
    "CosineWindowAttention", "WindowAttention", "attend_in_windows", "bias_of_table",
    "continuous_bias", "scaled_cosine",
]  # fmt: skip

_LARGEST_LOG_SCALE = log(100)


def attend_in_windows(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b h i d"],
    v: Float[Tensor, "b h i d"],
    bias: Float[Tensor, "h *offsets"],
    mask: Float[Tensor, "w i i"] | None,
    *,
    scale: float,
    dropout: float,
    weights: bool,
) -> tuple[Float[Tensor, "b i h d"], Float[Tensor, "b h i i"] | None]:
    """`attend`, with `b` windows: those of the first image, then of the next one.

    Args:
        q: queries.
        k: keys.
        v: values.
        bias: of `2 n - 1` offsets along an axis of `n` tokens, in the order of key minus query.
        mask: for each of the `w` windows of an image; None: nothing is hidden.
        scale: of the products.
        dropout: probability that a weight is dropped.
        weights: whether to build the weights.
    """
    if mask is not None:
        images = q.shape[0] // mask.shape[0]
        mask = (mask if images == 1 else mask.repeat(images, 1, 1))[:, None]
    shape = tuple((offsets + 1) // 2 for offsets in bias.shape[1:])
    return attend(
        q, k, v, GridTerms(shape, joint_bias=bias.to(q.dtype)), mask=mask, scale=scale,
        dropout=dropout, weights=weights,
    )  # fmt: skip


def bias_of_table(
    table: Float[Tensor, "r h"], shape: tuple[int, ...]
) -> Float[Tensor, "h *offsets"]:
    """A table of `r` offsets, in the order of query minus key, for `attend_in_windows`.

    Args:
        table: a row for each offset, along the last axis first; `2 n - 1` of an axis of `n` tokens.
        shape: of a window.
    """
    offsets = tuple(2 * size - 1 for size in shape)
    return table.mT.unflatten(1, offsets).flip(tuple(range(1, len(shape) + 1)))


def continuous_bias(table: Float[Tensor, "m n h"]) -> Float[Tensor, "h m n"]:
    """The bias of Swin v2 for `attend_in_windows`, at most 16.

    Args:
        table: what its network gives for each offset, in the order of query minus key.
    """
    return 16 * table.permute(2, 0, 1).flip(1, 2).sigmoid()


def scaled_cosine(
    q: Float[Tensor, "b h i d"], k: Float[Tensor, "b h i d"], logit_scale: Float[Tensor, "h 1 1"]
) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b h i d"]]:
    """Queries and keys whose products are cosines, times a scale that is at most 100.

    Args:
        q: queries.
        k: keys.
        logit_scale: the logarithm of each head's scale.
    """
    scale = logit_scale.clamp(max=_LARGEST_LOG_SCALE).exp()
    return normalize(q, dim=-1) * scale, normalize(k, dim=-1)


class WindowAttention(Adapted):
    """For `DonutSwinSelfAttention` and its kin.

    Windows of another size than the table's run as before.
    """

    scheme = "joint bias of two axes, in windows"
    signatures = {
        "forward": ("self", "hidden_states", "attention_mask", "output_attentions"),
    }
    attention_head_size: int
    window_size: tuple[int, int]
    relative_position_bias_table: nn.Parameter
    query: nn.Module
    key: nn.Module
    value: nn.Module
    dropout: nn.Dropout

    def forward(
        self,
        hidden_states: Float[Tensor, "b i e"],
        attention_mask: Float[Tensor, "w i i"] | None = None,
        output_attentions: bool | None = False,
    ) -> tuple[Tensor, ...]:
        height, width = self.window_size
        if hidden_states.shape[1] != height * width:
            return self.original_forward(hidden_states, attention_mask, output_attentions)
        q, k, v = project_heads(
            hidden_states, self.query, self.key, self.value, width=self.attention_head_size
        )
        q, k, scale = self._scaled(q, k)
        output, weights = attend_in_windows(
            q, k, v, self._bias(), self._mask(attention_mask), scale=scale,
            dropout=drop_probability(self.dropout), weights=bool(output_attentions),
        )  # fmt: skip
        output = output.flatten(2)
        return (output,) if weights is None else (output, weights)

    def _scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """Queries and keys, and the scale of their products."""
        return q, k, self.attention_head_size**-0.5

    def _bias(self) -> Float[Tensor, "h m n"]:
        return bias_of_table(self.relative_position_bias_table, self.window_size)

    def _mask(self, mask: Tensor | None) -> Tensor | None:
        """What is added to the scores for a mask."""
        return mask


class CosineWindowAttention(WindowAttention):
    """For `Swinv2SelfAttention` and its kin, which add their mask twice."""

    scheme = "cosine; computed joint bias of two axes, in windows"
    logit_scale: nn.Parameter
    continuous_position_bias_mlp: nn.Module
    relative_coords_table: Tensor
    relative_position_bias_table: Any

    def _scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return *scaled_cosine(q, k, self.logit_scale), 1.0

    def _bias(self) -> Float[Tensor, "h m n"]:
        return continuous_bias(self.continuous_position_bias_mlp(self.relative_coords_table)[0])

    def _mask(self, mask: Tensor | None) -> Tensor | None:
        return None if mask is None else mask + mask
