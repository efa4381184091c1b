"""What SAM, ViTDet and SegGPT share: a table of keys for each axis of the image.

    s_ij = scale * q_i . k_j + q_i . H[y_i - y_j] + q_i . W[x_i - x_j]      (y, x): row and column

Li et al. 2022, "MViTv2", equations 3 and 4, with queries and keys on one grid; the paper scales the
tables as it does the products of queries and keys, its code and this do not. Both are shared by the
heads, in the order of query minus key, and interpolated linearly where the image has another size
than they were made for.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...positions.resizing import resize_rows
from ...terms import GridTerms, OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import split_qkv

__all__ = ["ImageAttention", "axis_of_keys"]


class ImageAttention(Adapted):
    """A base of what attends over the tokens of an image, or of each window of one."""

    scheme = "keys of two axes"
    scale: float
    qkv: nn.Module
    proj: nn.Module
    rel_pos_h: nn.Parameter
    rel_pos_w: nn.Parameter

    def image_attention(
        self,
        hidden_states: Float[Tensor, "b y x e"],
        *,
        heads: int,
        dropout: float = 0.0,
        weights: bool = False,
    ) -> tuple[Float[Tensor, "b y x e"], Float[Tensor, "b h i j"] | None]:
        """The projected output, and the weights before dropout if they are wanted.

        Args:
            hidden_states: of the image, or of windows as so many images.
            heads: h.
            dropout: probability that a weight is dropped.
            weights: whether to build the `i x j` weights.
        """
        shape = (hidden_states.shape[1], hidden_states.shape[2])
        q, k, v = split_qkv(self.qkv(hidden_states).flatten(1, 2), heads=heads)
        q, k = self.normalized(q, k)
        axes = tuple(
            axis_of_keys(rows, size, scale=self.scale, dtype=q.dtype)
            for rows, size in zip((self.rel_pos_h, self.rel_pos_w), shape, strict=True)
        )
        output, found = attend(
            q, k, v, GridTerms(shape, axes), scale=self.scale, dropout=dropout, weights=weights
        )
        return self.proj(output.flatten(2).unflatten(1, shape)), found

    def normalized(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as the scores and the tables multiply them.

        Args:
            q: `(b, h, i, d)`, as projected.
            k: likewise.
        """
        return q, k


def axis_of_keys(
    rows: Float[Tensor, "r d"], size: int, *, scale: float, dtype: torch.dtype
) -> Terms:
    """The terms of one axis, beside products that are scaled.

    Args:
        rows: in the order of query minus key, of an axis of any size, not scaled.
        size: of the axis, in tokens.
        scale: of the products.
        dtype: of the queries.
    """
    resized: Any = resize_rows(rows[None], (2 * size - 1,))
    return Terms(keys=OffsetTable((resized.flip(1) / scale).to(dtype), 1 - size))
