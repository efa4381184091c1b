"""The relative position bias of Swin Transformers: one scalar per head for all offsets together.

    s_ij = scale * q_i . k_j + B[j_h - i_h, j_w - i_w]              Liu et al. 2021, eq. 4

- Source: Liu et al. 2021, section 3.2, for windows `(height, width)`; Video Swin (Liu et al. 2022,
  section 3.2), with a third axis; BEiT (Bao et al. 2022) over a whole image.
- Offset: key minus query along each axis; entry `[n, m]` belongs to offset
  `(n - (height - 1), m - (width - 1))`.
- Rows: `2 * size - 1` along each axis, so `(2 h - 1) * (2 w - 1)` scalars per head.
- Scale: none; a bias in logits, not multiplied by the attention's scale.
- Beyond the table: for another window it is resized, by cubics along every axis, which for two is
  the bicubic of Swin's fine-tuning; with `resize=False` each entry keeps its offset and further
  ones clamp along each axis.
- Elsewhere: Swin's `relative_position_bias_table` is `((2 h - 1) * (2 w - 1), heads)` and counts
  query minus key: `table.mT.unflatten(1, (2 h - 1, 2 w - 1)).flip(1, 2)` is this one. BEiT has
  three more scalars, for pairs with its class token, which `relpos.adapters` computes; here tokens
  of the prefix have no bias.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_dtype, check_flags
from ..summed_rows import picked_rows
from .fsdp import copied_under_fsdp
from .joint_bias import JointBiasPosition
from .resizing import resize_rows

__all__ = ["WindowBias"]


class WindowBias(JointBiasPosition):
    """`B` with one scalar per head for each pair of offsets (triple, ...) within a window.

    Args:
        heads: query heads; 1 is shared by all.
        shape: the window, e.g. `(height, width)`; its tokens come in row-major order.
        prefix: number of tokens before the window (class tokens), which have no bias.
        resize: whether the scalars are resized for another window; if not, they keep their offsets.
        device: of the parameter.
        dtype: of the parameter.

    Raises:
        ValueError: if a size is out of range.

    >>> position = WindowBias(4, (7, 7))
    >>> position.joint_bias.shape, position.dense().shape, position.dense((8, 12)).shape
    (torch.Size([4, 13, 13]), torch.Size([4, 49, 49]), torch.Size([4, 96, 96]))
    """

    def __init__(
        self,
        heads: int,
        shape: tuple[int, ...],
        *,
        prefix: int = 0,
        resize: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, shape, prefix=prefix)
        check_flags("WindowBias", resize=resize)
        check_dtype("WindowBias", dtype)
        self.resize = resize
        sizes = [2 * size - 1 for size in self.shape]
        self.joint_bias = nn.Parameter(torch.empty(self.heads, *sizes, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the scalars from a normal distribution around 0 of standard deviation 0.02 logits.

        As Swin does: at first the bias hardly decides.
        """
        nn.init.normal_(self.joint_bias, std=0.02)

    def extra_repr(self) -> str:
        """Heads, window, and non-default arguments."""
        prefix = f", prefix={self.prefix}" if self.prefix else ""
        resize = "" if self.resize else ", resize=False"
        return f"heads={self.heads}, shape={self.shape}{prefix}{resize}"

    def _bias_for(
        self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> Float[Tensor, "h ..."]:
        if self.resize:
            counts = tuple(2 * size - 1 for size in shape)
            return resize_rows(copied_under_fsdp(self, self.joint_bias), counts, mode="cubic")
        joint_bias = copied_under_fsdp(self, self.joint_bias)
        for axis, (size, own) in enumerate(zip(shape, self.shape, strict=True), start=1):
            at = torch.arange(1 - size, size, device=device).clamp(1 - own, own - 1)
            picked = picked_rows(joint_bias.movedim(axis, 0), at + own - 1)
            joint_bias = picked.movedim(0, axis)
        return joint_bias
