"""`AbsPosEmb1D`, `RelPosEmb1D` and `RelPosEmb2D` as AI Summer's posts and package spell them.

    R_ij = q_i . E[j - i]      q_i . A_j      q_i . (W[x_j - x_i] + H[y_j - y_i])

The classes of Adaloglou's "How Positional Embeddings work in Self-Attention" and of the package
`self-attention-cv`, for checkpoints and code written against them: same arguments, same parameter
names, and `module(q)` gives the same dense logits, which are not scaled. As position schemes,
`q, k, terms = module(q, k)`, they hand the same logits to `relpos.attention` as tables. New code
has `AbsoluteKeys`, `Bidirectional` and `Grid`.

- Offset: key minus query; row `n` belongs to offset `n - (tokens - 1)`. A map's tokens are in
  row-major order.
- Rows: `2 * tokens - 1`; for a map `2 w - 1` along its rows and `2 h - 1` along its columns.
- Scale: the package scales the content only: `scale * q . k + R`. So the rows are divided by the
  scale of the attention, `scale=` here, `1 / sqrt(dim_head)` by default; layers take it from here
  (`attention_scale`). The post's equations scale both, as `AbsoluteKeys` and `Bidirectional` do.
- Position (`AbsPosEmb1D`): counted along the row, as in `AbsoluteKeys`: a text behind left padding,
  or a later one of several packed into a row, is not as it would be alone.
- Beyond the table: other lengths clamp to the end rows; the originals fail. A map is fixed.

Where the originals are wrong, this is right, and so differs from them:

- Their `heads=n` never builds per-head tables; here it does. A state dict with one table for all
  heads is taken, each head starting from it.
- Their `RelPosEmb2D` adds, along the height, the logits of another token's query (that at the
  transposed position), and fails unless the map is square. Here both axes are those of the token.
- Their `emb_w` acts along the width, as its name says, but is sized by the height, and `emb_h` the
  other way round. Here sizes follow the names. On a square map a state dict is taken by its names.
  On any other map the sizes tell: where the two tables fit only if exchanged, they are exchanged.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import (
    check_count,
    check_dtype,
    check_floating,
    check_like_parameter,
    check_queries,
    check_scale,
)
from ..ops import relative_logits
from ..positions.absolute import position_rows
from ..positions.base import Position
from ..positions.scales import scale_or_default
from ..terms import GridTerms, OffsetTable, Terms

__all__ = ["AbsPosEmb1D", "RelPosEmb1D", "RelPosEmb2D"]

_Scheme = tuple[Tensor, Tensor, Terms | GridTerms]


class AbsPosEmb1D(Position):
    """`q_i . A_j` for keys at `tokens` positions; called with keys too, `k_j + A_j / scale`.

    Args:
        tokens: rows of `A`.
        dim_head: width of one head.
        scale: the attention's scale; None means `1 / sqrt(dim_head)`.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, or the scale not positive.

    >>> AbsPosEmb1D(5, 4)(torch.zeros(1, 2, 5, 4)).shape
    torch.Size([1, 2, 5, 5])
    """

    reads_key_start: ClassVar[bool] = True
    attention_scale: float

    def __init__(
        self,
        tokens: int,
        dim_head: int,
        *,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.tokens = check_count("AbsPosEmb1D", "tokens", tokens)
        self.dim_head = check_count("AbsPosEmb1D", "dim_head", dim_head)
        self.attention_scale = scale_or_default(check_scale("AbsPosEmb1D", scale), self.dim_head)
        check_dtype("AbsPosEmb1D", dtype)
        rows = torch.empty(self.tokens, self.dim_head, device=device, dtype=dtype)
        self.abs_pos_emb = nn.Parameter(rows)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows from a normal distribution around 0 with variance `1 / dim_head`."""
        nn.init.normal_(self.abs_pos_emb, std=self.dim_head**-0.5)

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"] | None = None,
        *,
        key_start: int = 0,
    ) -> Float[Tensor, "b h i j"] | _Scheme:
        """Unscaled logits `(b, h, i, tokens)`; given `k`, what attention needs instead.

        Args:
            q: queries.
            k: keys; None asks for the logits.
            key_start: position of the first key.

        Raises:
            ShapeError: if a tensor has another width, dtype or device than the rows.
            ValueError: if `key_start` is no integer or negative.
        """
        check_floating("AbsPosEmb1D", "q", q, "b h i d", {"d": self.dim_head})
        if k is None:
            check_like_parameter("AbsPosEmb1D", "q", q, self.abs_pos_emb)
            return q @ self.abs_pos_emb.mT
        check_like_parameter(
            "AbsPosEmb1D", "k", k, self.abs_pos_emb, "b g j d", {"d": self.dim_head}
        )
        rows = self.abs_pos_emb / self.attention_scale
        key_start = check_count("AbsPosEmb1D", "key_start", key_start, least=0)
        return q, k + position_rows(rows, k.shape[2], start=key_start), Terms()

    def extra_repr(self) -> str:
        """Rows and width."""
        return f"tokens={self.tokens}, dim_head={self.dim_head}"


class RelPosEmb1D(Position):
    """`q_i . E[j - i]`, for the offsets `-(tokens - 1)..tokens - 1`.

    Args:
        tokens: longest sequence in which every offset has a row of its own.
        dim_head: width of one head.
        heads: None, one table that all heads share, or the number of tables, one for each head.
        scale: the attention's scale; None means `1 / sqrt(dim_head)`.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, or the scale not positive.

    >>> tuple(RelPosEmb1D(5, 4, heads=2).rel_pos_emb.shape)
    (2, 9, 4)
    """

    shift_invariant: ClassVar[bool] = True
    keeps_content: ClassVar[bool] = True
    attention_scale: float

    def __init__(
        self,
        tokens: int,
        dim_head: int,
        heads: int | None = None,
        *,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.tokens = check_count("RelPosEmb1D", "tokens", tokens)
        self.dim_head = check_count("RelPosEmb1D", "dim_head", dim_head)
        self.heads = None if heads is None else check_count("RelPosEmb1D", "heads", heads)
        self.attention_scale = scale_or_default(check_scale("RelPosEmb1D", scale), self.dim_head)
        check_dtype("RelPosEmb1D", dtype)
        shape = (2 * self.tokens - 1, self.dim_head)
        per_head = () if self.heads is None else (self.heads,)
        self.rel_pos_emb = nn.Parameter(torch.empty(per_head + shape, device=device, dtype=dtype))
        self.register_load_state_dict_pre_hook(_repeat_for_each_head)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows from a normal distribution around 0 with variance `1 / dim_head`."""
        nn.init.normal_(self.rel_pos_emb, std=self.dim_head**-0.5)

    def forward(
        self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b g j d"] | None = None
    ) -> Float[Tensor, "b h i j"] | _Scheme:
        """Unscaled logits `(b, h, i, i)`; given `k`, what attention needs instead.

        Args:
            q: queries.
            k: keys; None asks for the logits, of keys at the queries' positions.

        Raises:
            ShapeError: if `q` or `k` has another width, or `q` another number of heads.
        """
        check_queries("RelPosEmb1D", q, self.heads, width=self.dim_head)
        if k is None:
            return relative_logits(q, q, Terms(keys=self.table(1.0)), scale=1.0)
        check_floating("RelPosEmb1D", "k", k, "b g j d", {"d": self.dim_head})
        return q, k, Terms(keys=self.table(self.attention_scale))

    def table(self, scale: float) -> OffsetTable:
        """`E / scale`.

        Args:
            scale: of the attention.
        """
        rows = self.rel_pos_emb if self.heads is not None else self.rel_pos_emb[None]
        return OffsetTable(rows / scale, first=1 - self.tokens)

    def extra_repr(self) -> str:
        """Length, width and heads."""
        return f"tokens={self.tokens}, dim_head={self.dim_head}, heads={self.heads}"


class RelPosEmb2D(Position):
    """`q_i . (W[x_j - x_i] + H[y_j - y_i])` on a map of `h x w` tokens in row-major order.

    Args:
        feat_map_size: `(height, width)`.
        dim_head: width of one head.
        heads: None, tables that all heads share, or the number of tables, one for each head.
        scale: the attention's scale; None means `1 / sqrt(dim_head)`.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, or the scale not positive.

    >>> {name: tuple(rows.shape) for name, rows in RelPosEmb2D((2, 3), 4).named_parameters()}
    {'emb_w.rel_pos_emb': (5, 4), 'emb_h.rel_pos_emb': (3, 4)}
    """

    attention_scale: float

    def __init__(
        self,
        feat_map_size: tuple[int, int],
        dim_head: int,
        heads: int | None = None,
        *,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(feat_map_size, tuple | list) or len(feat_map_size) != 2:
            raise ValueError(
                f"RelPosEmb2D: feat_map_size must be (height, width), got {feat_map_size!r}"
            )
        self.h, self.w = (check_count("RelPosEmb2D", "feat_map_size", n) for n in feat_map_size)
        self.dim_head = check_count("RelPosEmb2D", "dim_head", dim_head)
        self.heads = None if heads is None else check_count("RelPosEmb2D", "heads", heads)
        self.attention_scale = scale_or_default(check_scale("RelPosEmb2D", scale), self.dim_head)
        check_dtype("RelPosEmb2D", dtype)
        self.emb_w, self.emb_h = (
            RelPosEmb1D(
                size, dim_head, heads, scale=self.attention_scale, device=device, dtype=dtype
            )
            for size in (self.w, self.h)
        )
        self.register_load_state_dict_pre_hook(_exchange_if_sized_by_the_other_side)

    def reset_parameters(self) -> None:
        """Draw both tables anew, as `RelPosEmb1D` does."""
        self.emb_w.reset_parameters()
        self.emb_h.reset_parameters()

    def forward(
        self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b g j d"] | None = None
    ) -> Float[Tensor, "b h i j"] | _Scheme:
        """Unscaled logits `(b, h, i, i)`; given `k`, what attention needs instead.

        Args:
            q: queries, one for each token of the map.
            k: keys, likewise; None asks for the logits.

        Raises:
            ShapeError: if `q` or `k` has another width or number of tokens, or `q` another number
                of heads.
        """
        tokens = self.h * self.w
        check_queries("RelPosEmb2D", q, self.heads, width=self.dim_head, tokens=tokens)
        if k is None:
            return relative_logits(q, q, self._terms(q, 1.0), scale=1.0)
        check_floating("RelPosEmb2D", "k", k, "b g j d", {"j": tokens, "d": self.dim_head})
        return q, k, self._terms(q, self.attention_scale)

    def extra_repr(self) -> str:
        """Map, width and heads."""
        return f"feat_map_size=({self.h}, {self.w}), dim_head={self.dim_head}, heads={self.heads}"

    def _terms(self, q: Tensor, scale: float) -> GridTerms:
        """What both tables give for attention of that scale.

        Each is called, since what has weights come and go does so when a module is called.
        """
        axes = tuple(emb(q, q)[2] for emb in (self.emb_h, self.emb_w))
        if scale != self.attention_scale:
            factor = self.attention_scale / scale
            axes = tuple(
                Terms(keys=axis.keys and axis.keys.map(lambda rows: rows * factor)) for axis in axes
            )
        return GridTerms((self.h, self.w), axes)


def _repeat_for_each_head(
    module: RelPosEmb1D, state_dict: dict[str, Any], prefix: str, *rest: object
) -> None:
    """Give each head its copy of a table without heads, as `heads=n` was saved elsewhere."""
    rows = state_dict.get(f"{prefix}rel_pos_emb")
    if rows is not None and rows.ndim == 2 and module.heads is not None:
        state_dict[f"{prefix}rel_pos_emb"] = rows.expand(module.heads, -1, -1).clone()


def _exchange_if_sized_by_the_other_side(
    module: RelPosEmb2D, state_dict: dict[str, Any], prefix: str, *rest: object
) -> None:
    """Exchange the two tables of a map that is not square where only that makes them fit."""
    names = f"{prefix}emb_w.rel_pos_emb", f"{prefix}emb_h.rel_pos_emb"
    if module.h == module.w or not all(name in state_dict for name in names):
        return
    tables = [state_dict[name] for name in names]
    # What is no table at all is for the loading itself to name.
    if [table.shape[-2:-1] for table in tables] == [(2 * module.h - 1,), (2 * module.w - 1,)]:
        state_dict.update(zip(names, reversed(tables), strict=True))
