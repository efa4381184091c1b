"""MONAI's Swin UNETR (Hatamizadeh et al. 2022), in windows of an image or a volume, and blocks.

Swin as in Liu et al. 2021, equation 4, for two or three axes; the blocks have a table of keys for
each axis, as in MViTv2 (Li et al. 2022, equations 3 and 4, unscaled).
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...terms import GridTerms
from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import project_heads, split_qkv
from .image_keys import axis_of_keys
from .window_attention import attend_in_windows, bias_of_table

__all__ = ["CrossAttentionBlock", "SABlock", "WindowAttention"]


class WindowAttention(Adapted):
    """For `WindowAttention` of `swin_unetr`.

    In a map smaller than a window the original takes the biases of the first tokens of a whole
    one, whatever the shape of the map. Where these are not whole rows of it, it runs as before.
    """

    scheme = "joint bias of all axes, in windows"
    signatures = {"forward": ("self", "x", "mask")}
    weights_dropout = "attn_drop"
    num_heads: int
    scale: float
    window_size: tuple[int, ...]
    relative_position_bias_table: nn.Parameter
    qkv: nn.Module
    attn_drop: nn.Dropout
    proj: nn.Module
    proj_drop: nn.Module

    def forward(self, x: Float[Tensor, "bw i e"], mask: Tensor | None = None) -> Tensor:
        first, *others = self.window_size
        # Not `divmod`: sizes are tensors while they are traced.
        rows, rest = x.shape[1] // prod(others), x.shape[1] % prod(others)
        if rest or rows > first:
            return self.original_forward(x, mask)
        # By torch's SDPA, which it takes without gradients alone, it drops nothing.
        flash = getattr(self, "use_flash_attention", False) and not torch.is_grad_enabled()
        bias = bias_of_table(self.relative_position_bias_table, tuple(self.window_size))
        q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        output, _ = attend_in_windows(
            q, k, v, bias.narrow(1, first - rows, 2 * rows - 1),
            None if mask is None else mask.to(q.dtype), scale=self.scale,
            dropout=0.0 if flash else drop_probability(self.attn_drop), weights=False,
        )  # fmt: skip
        return self.proj_drop(self.proj(output.flatten(2)))


class _Block(Adapted):
    """A base of blocks with decomposed relative positions of an image.

    In volumes the originals look up the third axis by the coordinate along the second one.
    """

    scheme = "keys of two axes"
    weights_dropout = "drop_weights"
    scale: float
    save_attn: bool
    att_mat: Tensor
    rel_positional_embedding: Any
    drop_weights: nn.Dropout

    @classmethod
    def applies(cls, module: Any) -> bool:
        # Older ones had no such positions.
        return getattr(module, "rel_positional_embedding", None) is not None

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if len(module.rel_positional_embedding.rel_pos_arr) != 2:
            return "positions along the third axis depend on the coordinate along the second"
        if module.causal:
            return "it is causal along the rows of an image"
        if module.attention_dtype is not None:
            return "its scores have a dtype of their own"
        return None

    def attend(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b h i d"],
        v: Float[Tensor, "b h i d"],
        mask: Tensor | None,
    ) -> Float[Tensor, "b i hd"]:
        """The output of all heads, side by side.

        Args:
            q: queries.
            k: keys.
            v: values.
            mask: `(b, j)`, not 0 for what takes part.

        Raises:
            ValueError: if the mask is of other keys.
        """
        if mask is not None and mask.shape[-1] not in (1, k.shape[2]):
            raise ValueError(
                f"{type(self).__name__}: attn_mask must be (b, j) with j={k.shape[2]}, got "
                f"{tuple(mask.shape)}"
            )
        shape = tuple(self.rel_positional_embedding.s_input_dims)
        axes = tuple(
            axis_of_keys(rows, size, scale=self.scale, dtype=q.dtype)
            for rows, size in zip(self.rel_positional_embedding.rel_pos_arr, shape, strict=True)
        )
        output, weights = attend(
            q, k, v, GridTerms(shape, axes), scale=self.scale, weights=self.save_attn,
            mask=None if mask is None else mask[:, None, None] != 0,
            dropout=drop_probability(self.drop_weights),
        )  # fmt: skip
        if weights is not None:
            self.att_mat = weights.detach()
        return output.flatten(2)


class SABlock(_Block):
    """For `SABlock`."""

    signatures = {"forward": ("self", "x", "attn_mask")}
    num_heads: int
    dim_head: int
    use_combined_linear: bool
    include_fc: bool
    qkv: nn.Module
    to_q: nn.Module
    to_k: nn.Module
    to_v: nn.Module
    out_proj: nn.Module
    drop_output: nn.Module

    def forward(self, x: Float[Tensor, "b i e"], attn_mask: Tensor | None = None) -> Tensor:
        if self.use_combined_linear:
            q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        else:
            q, k, v = project_heads(x, self.to_q, self.to_k, self.to_v, width=self.dim_head)
        output = self.attend(q, k, v, attn_mask)
        return self.drop_output(self.out_proj(output) if self.include_fc else output)


class CrossAttentionBlock(_Block):
    """For `CrossAttentionBlock`, where the context is as large as the image."""

    signatures = {"forward": ("self", "x", "context")}
    head_dim: int
    to_q: nn.Module
    to_k: nn.Module
    to_v: nn.Module
    out_proj: nn.Module
    drop_output: nn.Module

    def forward(
        self, x: Float[Tensor, "b i e"], context: Float[Tensor, "b i c"] | None = None
    ) -> Tensor:
        context = x if context is None else context
        (q,) = project_heads(x, self.to_q, width=self.head_dim)
        k, v = project_heads(context, self.to_k, self.to_v, width=self.head_dim)
        # One context for all.
        k, v = (part.expand(len(q), -1, -1, -1) for part in (k, v))
        return self.drop_output(self.out_proj(self.attend(q, k, v, None)))
