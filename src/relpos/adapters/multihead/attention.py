"""`torch.nn.MultiheadAttention` with a position, as the class that a module of it is given.

A module becomes one of these by its `__class__`, and torch's again likewise: parameters, hooks and
whoever holds it stay. Masks, returns and the hint `is_causal` are torch's, not those of
`relpos.layers.MultiheadAttention`, which computes. Three differences remain: a query without any
key left gives zeros instead of NaN, the weights that are returned in training are those before
dropout, and `is_causal=True` without a mask is always refused, where torch's fused inference
ignores it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import ShapeError
from ...layers import MultiheadAttention
from ...layers.nested import padded, unpadded_like

__all__ = ["AttentionWithPosition", "CrossAttentionWithPosition", "SelfAttentionWithPosition"]


# Still one of torch's to code that asks.
class AttentionWithPosition(MultiheadAttention, nn.MultiheadAttention):
    """A `torch.nn.MultiheadAttention` whose `position` acts on each head."""

    # What torch's module has not: of the class, so that an instance gains its position alone.
    scale: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    window: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    softcap: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def num_kv_heads(self) -> int:
        """As many as query heads."""
        return self.num_heads

    @property
    def _qkv_same_embed_dim(self) -> bool:
        # PEFT's LoRA wants it True. Torch's fused inference, which would take the weights and never
        # call `forward`, is for weights whose gradient nobody wants: for these it stays False.
        weight = self.in_proj_weight
        return weight is not None and weight.requires_grad and torch.is_grad_enabled()

    def _reset_parameters(self) -> None:
        # torch's goes by `_qkv_same_embed_dim`. transformers calls it for each such module.
        self.reset_parameters()

    @property
    def _sizes(self) -> tuple[int, int, int]:
        return self.embed_dim, self.embed_dim, self.embed_dim

    def forward(
        self,
        # Nested tensors have no shape.
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output like `query`, and the weights or None, as of `torch.nn.MultiheadAttention`.

        Args:
            query: `(b, i, e)`, `(i, b, e)` without `batch_first`, one sequence `(i, e)`, or nested.
            key: likewise with j tokens of width kdim.
            value: likewise with j tokens of width vdim.
            key_padding_mask: `(b, j)` or `(j,)`; boolean, True is dropped, or additive.
            need_weights: whether to return the weights, which builds an `i x j` matrix.
            attn_mask: `(i, j)` or `(b * h, i, j)`; likewise.
            average_attn_weights: whether the weights are averaged over the heads.
            is_causal: a hint that `attn_mask`, which must be there, is causal.

        Raises:
            ShapeError: if a tensor or mask does not fit the others, or a self-attention is called
                with another number of keys than of queries.
            ValueError: if there is the hint and no mask, or masks beside nested tensors.
        """
        if is_causal and attn_mask is None:
            raise ValueError(
                "MultiheadAttention: attn_mask must be given with is_causal=True, which is a hint "
                "about it in torch, got None"
            )
        if isinstance(query, Tensor) and query.is_nested:
            if key_padding_mask is not None or attn_mask is not None:
                raise ValueError(
                    "MultiheadAttention: key_padding_mask and attn_mask must be None with nested "
                    "tensors, got a mask"
                )
            return self._forward_nested(query, key, value, need_weights, average_attn_weights)
        start = self._query_start(*(_count(x, self.batch_first) for x in (query, key)))
        # Where torch follows the hint instead of reading the mask.
        hinted = is_causal and key_padding_mask is None and not need_weights
        return super().forward(
            query, key, value, key_padding_mask, need_weights, None if hinted else attn_mask,
            average_attn_weights, is_causal=hinted, query_start=start,
        )  # fmt: skip

    def _forward_nested(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool, average: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The same of sequences of different lengths, through padded ones."""
        (q, k, v), (queries, keys, _), padding = padded(
            query, key, value, batch_first=self.batch_first
        )
        start = self._query_start(queries, keys)
        output, weights = super().forward(
            q, k, v, padding, need_weights, None, average, query_start=start
        )
        output = output if self.batch_first else output.transpose(0, 1)
        return unpadded_like(query, output, queries), weights

    def _query_start(
        self, queries: int | list[int] | None, keys: int | list[int] | None
    ) -> int | None:
        """Position of the first query, as `attention` wants it.

        Args:
            queries: number of tokens, or of each nested sequence; None if the input is no tensor.
            keys: likewise.
        """
        raise NotImplementedError


class SelfAttentionWithPosition(AttentionWithPosition):
    """One whose queries and keys are the same tokens."""

    def _query_start(self, queries: int | list[int] | None, keys: int | list[int] | None) -> None:
        if queries != keys:
            raise ShapeError(
                f"MultiheadAttention: key must have as many tokens as query, {queries}, since "
                f"positions were added to it as to a self-attention, got {keys}; exclude= it from "
                "add_positions, or name it with include= and cross_attention=True"
            )


class CrossAttentionWithPosition(AttentionWithPosition):
    """One whose queries and keys both count from 0, and may be of different number."""

    def _query_start(
        self, queries: int | list[int] | None, keys: int | list[int] | None
    ) -> int | None:
        # Grids say themselves where their tokens are.
        return None if getattr(self.position, "reads_shape", False) else 0


def _count(x: Tensor, batch_first: bool) -> int | None:
    """Number of tokens; None for what `MultiheadAttention` refuses."""
    if not isinstance(x, Tensor) or x.ndim not in (2, 3):
        return None
    return x.shape[1 if batch_first and x.ndim == 3 else 0]
