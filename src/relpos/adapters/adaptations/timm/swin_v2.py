"""timm's two forms of Swin v2 (Liu et al. 2022): cosines, and biases that are computed.

The first is its authors' too.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...heads import split_qkv
from ..window_attention import attend_in_windows, continuous_bias, scaled_cosine
from .attention import TimmAttention, dropout_of
from .projections import project_biased

__all__ = ["CrWindowAttention", "WindowAttention"]


class _CosineAttention(TimmAttention):
    """What both forms share: all but the bias and the projection."""

    scheme = "cosine; computed joint bias of two axes, in windows"
    signatures = {"forward": ("self", "x", "mask")}
    window_size: tuple[int, int]
    logit_scale: nn.Parameter

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = split_qkv(self._projected(x), heads=self.num_heads)
        q, k = scaled_cosine(q, k, self.logit_scale.view(-1, 1, 1))
        output, _ = attend_in_windows(
            q, k, v, self._bias(), mask, scale=1.0,
            dropout=dropout_of(self), weights=False,
        )  # fmt: skip
        return self.projected(output.flatten(2))

    def _projected(self, x: Tensor) -> Float[Tensor, "b i 3hd"]:
        raise NotImplementedError

    def _bias(self) -> Float[Tensor, "h m n"]:
        raise NotImplementedError


class WindowAttention(_CosineAttention):
    """For `WindowAttention` of `swin_transformer_v2`."""

    cpb_mlp: nn.Module
    q_bias: nn.Parameter
    v_bias: nn.Parameter
    relative_coords_table: Tensor

    def _projected(self, x: Tensor) -> Tensor:
        return project_biased(self, x)

    def _bias(self) -> Tensor:
        return continuous_bias(self.cpb_mlp(self.relative_coords_table)[0])


class CrWindowAttention(_CosineAttention):
    """For `WindowMultiHeadAttention` of `swin_transformer_v2_cr`.

    While it trains it runs as before if its network drops out: for each pair of tokens, not for
    each offset.
    """

    meta_mlp: nn.Module

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.training and _drops_out(self.meta_mlp):
            return self.original_forward(x, mask)
        return super().forward(x, mask)

    def _projected(self, x: Tensor) -> Tensor:
        return self.qkv(x)

    def _bias(self) -> Tensor:
        height, width = self.window_size
        parameter = self.logit_scale
        # Of key minus query, where the original's network sees query minus key.
        axes = (torch.arange(n - 1, -n, -1, device=parameter.device) for n in (height, width))
        offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).float()
        logarithms = offsets.sign() * offsets.abs().log1p()
        return self.meta_mlp(logarithms.to(parameter.dtype)).permute(2, 0, 1)


def _drops_out(module: nn.Module) -> bool:
    return any(isinstance(part, nn.Dropout) and part.p > 0 for part in module.modules())
