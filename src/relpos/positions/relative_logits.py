"""Relative logits from the layer's input, as in Inkling (Thinking Machines 2026).

    s_ij = scale * q_i . k_j + r_i . K[j - i]       r = x W_r, for -extent < j - i <= 0, else 0

Each token mixes `width` learned profiles of bias against distance: the low-rank counterpart of
Huang's term, whose query has the width of the head.

- Source: the released model code; `r` is split into heads as the queries are, and the heads share
  `K`.
- Offset: key minus query; row `n` belongs to offset `n - (extent - 1)`, the last row to 0.
- Rows: `extent`, for the offsets `-(extent - 1)..0`.
- Scale: none. The op scales the `keys` term, so the rows are divided by it. Another scale than
  `1 / sqrt(d)` (Inkling's is `1 / d`, since its queries and keys have unit length) is given to this
  class, of which layers take it (`attention_scale`).
- Beyond the table: nothing, further back as well as ahead of the query.
- Elsewhere: the parameters are `r_proj.weight`, as here, and `rel_logits_proj.proj`, of shape
  `(width, extent)` and counted by distance: `keys[0] = proj.T.flip(0)`. Its long-context factor on
  the queries acts on `r` too: multiply `x` by it, since the projection has no bias.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_floating, check_like_parameter, check_scale
from ..terms import OffsetTable, Terms
from .base import Position
from .quantized import is_packed
from .scales import scale_or_default

__all__ = ["RelativeLogits"]


class RelativeLogits(Position):
    """`(x W_r)_i . K[j - i]` with `extent` rows of a small width; for causal attention.

    Args:
        extent: rows, in tokens; keys further back get nothing.
        width: of the rows and of the relative queries.
        heads: query heads, each with a relative query of its own.
        embed_dim: width e of the layer's input.
        scale: the attention's scale; None means `1 / sqrt(d)`, so then give the attention none.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, or the scale not positive.

    >>> position = RelativeLogits(1024, 16, heads=8, embed_dim=512)
    >>> tuple(position.keys.shape), tuple(position.r_proj.weight.shape)
    ((1, 1024, 16), (128, 512))
    """

    reads_input: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    keeps_content: ClassVar[bool] = True
    reads_content: ClassVar[bool] = False

    def __init__(
        self,
        extent: int,
        width: int,
        heads: int,
        embed_dim: int,
        *,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = "RelativeLogits"
        self.extent = check_count(name, "extent", extent)
        self.width = check_count(name, "width", width)
        self.heads = check_count(name, "heads", heads)
        self.embed_dim = check_count(name, "embed_dim", embed_dim)
        self.attention_scale = check_scale(name, scale)
        self.assumes_default_scale = scale is None
        check_dtype(name, dtype)
        inner = self.heads * self.width
        self.r_proj = nn.Linear(self.embed_dim, inner, bias=False, device=device, dtype=dtype)
        self.keys = nn.Parameter(
            torch.empty(1, self.extent, self.width, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both from normal distributions around 0, of variance `1 / e` and `1 / width^2`.

        For an input of unit variance a logit then has variance `1 / width`.
        """
        nn.init.normal_(self.r_proj.weight, std=self.embed_dim**-0.5)
        nn.init.normal_(self.keys, std=1 / self.width)

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        x: Float[Tensor, "b i e"],
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` unchanged, the table, and the relative queries that are dotted with it.

        Args:
            q: queries.
            k: keys.
            x: the layer's input, from which the queries were made.

        Raises:
            ShapeError: if `q` has another number of heads, or `x` another width, dtype or device.
        """
        check_floating("RelativeLogits", "q", q, "b h i d", {"h": self.heads})
        check_floating("RelativeLogits", "k", k, "b g j d")
        like = self.keys if is_packed(self.r_proj) else self.r_proj.weight
        check_like_parameter("RelativeLogits", "x", x, like, "b i e", {"e": self.embed_dim})
        q_rel = self.r_proj(x).unflatten(2, (self.heads, self.width)).transpose(1, 2)
        rows = self.keys / scale_or_default(self.attention_scale, q.shape[3])
        return q, k, Terms(keys=OffsetTable(rows, 1 - self.extent, "zero"), q_rel=q_rel)

    def head_axes(self) -> dict[str, int]:
        """The projection, whose outputs are the heads one after the other."""
        return {"r_proj.weight": 0}

    def extra_repr(self) -> str:
        """Rows, widths, heads and scale."""
        own = self.attention_scale
        scale = "" if own is None else f", scale={own:g}"
        return (
            f"extent={self.extent}, width={self.width}, heads={self.heads}, "
            f"embed_dim={self.embed_dim}{scale}"
        )
