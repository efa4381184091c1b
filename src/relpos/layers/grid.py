"""Multi-head self-attention over a feature map, image, video or any other grid.

    y = W_o concat_h attention(W_q x, W_k x, W_v x)        x (b, e, height, width), row by row

As the attention layer of Bottleneck Transformers (Srinivas et al. 2021, figure 4), which has no
`W_o` (`projection=False`), of ViTDet and SAM, and with `query_pool` that of MViT (Fan et al. 2021,
section 3.1), whose queries lie on a coarser grid than its keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..checks import (
    check_count,
    check_dtype,
    check_floating,
    check_module,
    check_probability,
    check_scale,
    check_softcap,
    check_tensor,
)
from ..errors import ShapeError
from ..ops import attention
from ..ops.locality import Window
from ..positions.handover import apply_position, check_position, resolve_scale
from ..terms import GridTerms, Terms
from ..traced_sizes import keep_grid
from .windows import check_neighborhood, check_window_of_axes, neighborhoods

__all__ = ["GridAttention"]


class GridAttention(nn.Module):
    """Each token of a map `(b, e, *grid)` reads from all tokens, with `position` on each head.

    For a map of another size than `position` was made for, schemes resize their tables (or clamp
    them, with `resize=False`), or compute them; `RelPosEmb2D` refuses it.

    Args:
        embed_dim: channels e of the map.
        num_heads: heads h.
        head_dim: width of one head; None means `e / h`.
        position: a scheme called as `q, k, terms = position(q, k)`, with `shape=` if it has
            `reads_shape = True`, as `Grid`, `AxialRotary`, `WindowBias` and `ContinuousBias` have;
            others see the row-major sequence. If queries are pooled it must have
            `reads_query_shape = True`, as `Grid` and `AxialRotary` have, and is called with
            `query_shape=` too. None: no positions.
        bias: whether the projections have biases.
        projection: whether there is a `W_o` back to e channels; if not, the output has `h` times
            `head_dim` channels.
        query_pool: a module that makes a map of queries `(b, h * head_dim, *grid)` smaller, e.g.
            `nn.AvgPool2d(2)`; the output is as small. None: as many queries as keys.
        dropout: probability that a weight is dropped in training.
        scale: of the scores; None means the one that the position needs, or else
            `1 / sqrt(head_dim)`.
        window: for each axis of the map `(left, right)`, or None: only keys at the offsets
            `-left..right` along each axis take part, None for no limit on a side. `((3, 3), (3,
            3))` is a neighbourhood of 7 x 7, of which the part beyond the map's edge is left out.
            Not with `query_pool`.
        neighborhood: for each axis how many tokens a query sees around it, or None for all of them;
            or one number for all axes. At the map's edges it moves inward, as NATTEN has it, so
            that every query sees as many (`relpos.neighborhood_ranges`). Not with `query_pool`.
        softcap: c of `c tanh(s / c)`, applied to the scores before the mask; None: none.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        TypeError: if `position` cannot be called so, or `query_pool` is no module.
        ValueError: if a size or the scale is out of range, the heads do not divide the channels,
            or the position needs another scale or knows no pooled queries.

    >>> from relpos.positions import Grid
    >>> layer = GridAttention(64, 4, position=Grid(16, (7, 9)))
    >>> layer(torch.zeros(2, 64, 7, 9)).shape, layer(torch.zeros(2, 64, 8, 5)).shape
    (torch.Size([2, 64, 7, 9]), torch.Size([2, 64, 8, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        position: nn.Module | None = None,
        bias: bool = True,
        projection: bool = True,
        query_pool: nn.Module | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        window: Sequence[Window | None] | None = None,
        neighborhood: int | Sequence[int | None] | None = None,
        softcap: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = check_count("GridAttention", "embed_dim", embed_dim)
        self.num_heads = check_count("GridAttention", "num_heads", num_heads)
        if head_dim is None and self.embed_dim % self.num_heads:
            raise ValueError(
                f"GridAttention: embed_dim must be a multiple of num_heads={self.num_heads} "
                f"without a head_dim, got {self.embed_dim}"
            )
        width = self.embed_dim // self.num_heads if head_dim is None else head_dim
        self.head_dim = check_count("GridAttention", "head_dim", width)
        self.dropout = check_probability("GridAttention", "dropout", dropout)
        self.scale = check_scale("GridAttention", scale, positive=False)
        check_dtype("GridAttention", dtype)
        self.window = check_window_of_axes("GridAttention", window)
        self.neighborhood = check_neighborhood("GridAttention", neighborhood)
        self.softcap = check_softcap("GridAttention", softcap)
        inner = self.num_heads * self.head_dim
        self.in_proj = nn.Linear(embed_dim, 3 * inner, bias=bias, device=device, dtype=dtype)
        self.out_proj = (
            nn.Linear(inner, embed_dim, bias=bias, device=device, dtype=dtype)
            if projection
            else None
        )
        if query_pool is not None:
            check_module("GridAttention", "query_pool", query_pool)
        self.query_pool = query_pool
        self.position = position
        self._check_pooling()
        if position is not None:
            check_position("GridAttention", "position", position)
        resolve_scale("GridAttention", position, self.scale, width=self.head_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform projections and zero biases; the given modules keep their numbers."""
        for linear in (self.in_proj, self.out_proj):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(
        self, x: Float[Tensor, "b e *grid"], mask: Bool[Tensor, "b *grid"] | None = None
    ) -> Float[Tensor, "..."]:
        """What each token reads, as a map.

        Args:
            x: feature map.
            mask: True at tokens that take part as keys (the opposite of a `key_padding_mask`);
                None: all.

        Returns:
            `(b, e, *grid)`, on the grid of the queries; without `projection` of `h * head_dim`
            channels.

        Raises:
            ShapeError: if `x` has other channels or no grid, or the mask another shape.
        """
        self._check_inputs(x, mask)
        # Again, since the position may have been given later.
        self._check_pooling()
        scale = resolve_scale("GridAttention", self.position, self.scale, width=self.head_dim)
        is_local = self.window is not None or self.neighborhood is not None
        if is_local or getattr(self.position, "reads_shape", False):
            x = keep_grid(x, 2, x.ndim - 2)
        grid = query_grid = tuple(x.shape[2:])
        tokens = x.flatten(2).mT
        q, k, v = self.in_proj(tokens).chunk(3, dim=-1)
        if self.query_pool is not None:
            pooled = self.query_pool(q.mT.unflatten(2, grid))
            query_grid, q = tuple(pooled.shape[2:]), pooled.flatten(2).mT
        q, k, v = (
            part.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for part in (q, k, v)
        )
        q, k, terms = apply_position(
            self.position, q, k, tokens, shape=grid,
            query_shape=None if self.query_pool is None else query_grid,
        )  # fmt: skip
        key_ranges = neighborhoods("GridAttention", self.neighborhood, grid, device=x.device)
        if is_local and isinstance(terms, Terms):
            terms = self._on_grid(terms, grid)
        heads = attention(
            q, k, v, terms, mask=None if mask is None else mask.flatten(1)[:, None, None],
            scale=scale, dropout=self.dropout if self.training else 0.0, softcap=self.softcap,
            window=self.window, key_ranges=key_ranges,
        )  # fmt: skip
        output = heads.transpose(1, 2).flatten(2)
        if self.out_proj is not None:
            output = self.out_proj(output)
        return output.mT.unflatten(2, query_grid)

    def _on_grid(self, terms: Terms, grid: tuple[int, ...]) -> GridTerms:
        """Nothing but the grid, along whose axes the window is."""
        if terms.tables:
            raise ValueError(
                "GridAttention: position must be made for a grid, as Grid is, where window or "
                f"neighborhood is given, got {type(self.position).__name__}"
            )
        return GridTerms(grid)

    def extra_repr(self) -> str:
        """Width, heads, and non-default arguments."""
        width = f"embed_dim={self.embed_dim}, heads={self.num_heads}, head_dim={self.head_dim}"
        projection = "" if self.out_proj is not None else ", projection=False"
        scale = "" if self.scale is None else f", scale={self.scale:g}"
        window = "" if self.window is None else f", window={self.window}"
        near = "" if self.neighborhood is None else f", neighborhood={self.neighborhood}"
        softcap = "" if self.softcap is None else f", softcap={self.softcap:g}"
        return width + projection + scale + window + near + softcap

    def _check_pooling(self) -> None:
        for name, given in (("window", self.window), ("neighborhood", self.neighborhood)):
            if given is not None and self.query_pool is not None:
                raise ValueError(
                    f"GridAttention: {name} must be None where query_pool moves the queries to a "
                    f"grid of their own, got {given}"
                )
        if self.position is None or self.query_pool is None:
            return
        if not getattr(self.position, "reads_query_shape", False):
            raise ValueError(
                "GridAttention: position must have reads_query_shape = True, as Grid has, where "
                f"query_pool moves the queries, got {type(self.position).__name__}"
            )

    def _check_inputs(self, x: Tensor, mask: Tensor | None) -> None:
        check_floating("GridAttention", "x", x)
        if x.ndim < 3 or x.shape[1] != self.embed_dim:
            raise ShapeError(
                f"GridAttention: x must be (b, e, *grid) with e={self.embed_dim}, "
                f"got {tuple(x.shape)}"
            )
        if mask is None:
            return
        check_tensor("GridAttention", "mask", mask)
        if mask.dtype != torch.bool:
            raise ShapeError(f"GridAttention: mask must be boolean, got {mask.dtype}")
        if mask.shape != x[:, 0].shape:
            raise ShapeError(
                f"GridAttention: mask must be (b, *grid) = {tuple(x[:, 0].shape)}, "
                f"got {tuple(mask.shape)}"
            )
