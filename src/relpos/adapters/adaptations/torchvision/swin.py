"""torchvision's Swin (Liu et al. 2021), Swin v2 and Video Swin (both Liu et al. 2022).

Their attention pads and shifts the map, cuts it into windows, and puts it together again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, pad

from ...adapted import Adapted
from ...heads import split_qkv
from ..window_attention import attend_in_windows, bias_of_table, continuous_bias, scaled_cosine

__all__ = ["ShiftedWindowAttention", "ShiftedWindowAttention3d", "ShiftedWindowAttentionV2"]


class ShiftedWindowAttention(Adapted):
    """For `ShiftedWindowAttention`; a map may have any number of axes."""

    scheme = "joint bias of two axes, in windows"
    signatures = {"forward": ("self", "x")}
    weights_dropout = "attention_dropout"
    window_size: list[int]
    shift_size: list[int]
    num_heads: int
    attention_dropout: float
    dropout: float
    relative_position_bias_table: nn.Parameter
    qkv: Any
    proj: nn.Module

    def forward(self, x: Float[Tensor, "b *sizes e"]) -> Float[Tensor, "b *sizes e"]:
        return self._attend(x, self.window_size)

    def _attend(self, x: Tensor, window: Sequence[int]) -> Tensor:
        """The attention in windows.

        Args:
            x: `(b, *sizes, e)`.
            window: sizes of one.
        """
        sizes, axes = x.shape[1:-1], tuple(range(1, x.ndim - 1))
        margins = [-size % n for size, n in zip(sizes, window, strict=True)]
        x = pad(x, [0, 0, *(part for margin in reversed(margins) for part in (0, margin))])
        # A single window along an axis is not shifted.
        shift = [
            0 if n >= size else by
            for n, size, by in zip(window, x.shape[1:-1], self.shift_size, strict=True)
        ]
        counts = [size // n for size, n in zip(x.shape[1:-1], window, strict=True)]
        if any(shift):
            x = x.roll([-by for by in shift], axes)
        q, k, v = split_qkv(self._projected(_cut(x, window)), heads=self.num_heads)
        q, k, scale = self._scaled(q, k)
        output, _ = attend_in_windows(
            q, k, v, self._bias(window), _mask(x, window, shift) if any(shift) else None,
            scale=scale, dropout=self.attention_dropout if self.training else 0.0, weights=False,
        )  # fmt: skip
        output = dropout(self.proj(output.flatten(2)), self.dropout, self.training)
        output = _joined(output, window, counts)
        if any(shift):
            output = output.roll(shift, axes)
        for axis, size in zip(axes, sizes, strict=True):
            output = output.narrow(axis, 0, size)
        return output.contiguous()

    def _projected(self, x: Tensor) -> Float[Tensor, "bw i 3hd"]:
        return self.qkv(x)

    def _scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """Queries and keys, and the scale of their products."""
        # A number while sizes are traced, too.
        return q, k, (self.qkv.out_features // (3 * self.num_heads)) ** -0.5

    def _bias(self, window: Sequence[int]) -> Float[Tensor, "h *offsets"]:
        return bias_of_table(self.relative_position_bias_table, tuple(window))


class ShiftedWindowAttentionV2(ShiftedWindowAttention):
    """For `ShiftedWindowAttentionV2`."""

    scheme = "cosine; computed joint bias of two axes, in windows"
    logit_scale: nn.Parameter
    cpb_mlp: nn.Module
    relative_coords_table: Tensor
    relative_position_bias_table: Any

    def _projected(self, x: Tensor) -> Tensor:
        bias: Any = self.qkv.bias
        if bias is None:
            return self.qkv(x)
        # Keys have no bias, whatever the parameter holds for them.
        if type(self.qkv) is nn.Linear:
            queries, keys, values = bias.chunk(3)
            return linear(x, self.qkv.weight, torch.cat([queries, torch.zeros_like(keys), values]))
        # LoRA's, or quantized: torch's own gives its bias when it is called.
        packed: Any = bias() if callable(bias) else bias
        _, keys, _ = packed.chunk(3)
        return self.qkv(x) - pad(keys, (len(keys), len(keys))).to(x.dtype)

    def _scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return *scaled_cosine(q, k, self.logit_scale), 1.0

    def _bias(self, window: Sequence[int]) -> Tensor:
        return continuous_bias(self.cpb_mlp(self.relative_coords_table)[0])


class ShiftedWindowAttention3d(ShiftedWindowAttention):
    """For `ShiftedWindowAttention3d`, whose windows are no larger than the video.

    With a smaller height or width it runs as before: the original then takes the biases of other
    offsets.
    """

    scheme = "joint bias of three axes, in windows"

    def forward(self, x: Float[Tensor, "b t y x e"]) -> Float[Tensor, "b t y x e"]:
        window = [min(n, size) for n, size in zip(self.window_size, x.shape[1:-1], strict=True)]
        if window[1:] != self.window_size[1:]:
            return self.original_forward(x)
        return self._attend(x, window)

    def _bias(self, window: Sequence[int]) -> Tensor:
        bias = super()._bias(self.window_size)
        return bias.narrow(1, self.window_size[0] - window[0], 2 * window[0] - 1)


def _cut(x: Tensor, window: Sequence[int]) -> Tensor:
    """Windows as pieces of the batch, those of the first map before those of the next.

    Args:
        x: `(b, *sizes, e)`, which windows divide.
        window: sizes of one.
    """
    count = len(window)
    for axis in range(count, 0, -1):
        x = x.unflatten(axis, (-1, window[axis - 1]))
    x = x.permute(0, *range(1, 2 * count, 2), *range(2, 2 * count + 1, 2), -1)
    return x.flatten(count + 1, 2 * count).flatten(0, count)


def _joined(x: Tensor, window: Sequence[int], counts: Sequence[int]) -> Tensor:
    """The maps that were cut.

    Args:
        x: `(b w, i, e)`.
        window: sizes of one.
        counts: of windows along each axis.
    """
    count = len(window)
    x = x.unflatten(1, tuple(window)).unflatten(0, (-1, *counts))
    x = x.permute(0, *(axis + by for axis in range(1, count + 1) for by in (0, count)), -1)
    for axis in range(1, count + 1):
        x = x.flatten(axis, axis + 1)
    return x


def _mask(x: Tensor, window: Sequence[int], shift: Sequence[int]) -> Float[Tensor, "w i i"]:
    """-100 for two tokens that a shift has brought into one window from afar, else 0.

    Args:
        x: `(b, *sizes, e)`, the shifted maps.
        window: sizes of one.
        shift: along each axis, in tokens.
    """
    part = torch.zeros((), device=x.device)
    for size, n, by in zip(x.shape[1:-1], window, shift, strict=True):
        place = torch.arange(size, device=x.device)
        part = 3 * part[..., None] + (place >= size - n).int() + (place >= size - by).int()
    pieces = _cut(part[None, ..., None], window)[..., 0]
    return (pieces[:, None] != pieces[:, :, None]).to(x.dtype) * -100
