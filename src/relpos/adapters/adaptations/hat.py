"""HAT (Chen et al. 2023, "HAT"): Swin's windows, whose index of offsets is handed from outside.

Liu et al. 2021, equation 4. The index is that of Swin, and is not read.
"""

from __future__ import annotations

from torch import Tensor

from .timm import swin

__all__ = ["WindowAttention"]


class WindowAttention(swin.WindowAttention):
    """For `WindowAttention` of HAT."""

    signatures = {"forward": ("self", "x", "rpi", "mask")}

    def forward(self, x: Tensor, rpi: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask)
