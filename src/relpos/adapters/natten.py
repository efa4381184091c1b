"""Neighbourhood attention with learned biases, under NATTEN's names (Hassani et al. 2023, eq. 2-4).

    s_ij = scale * q_i . k_j + B[o_1, ..., o_n]         for the keys j of i's neighbourhood alone

with the offset `o_a` of key minus query along axis `a`, in steps of the dilation. (The paper
divides the biases by `sqrt(d)` too; NATTEN's code, and this, do not.) NATTEN's fused kernels took
the biases forward only, and since 0.20 it has none; here they come with `O(L)` memory, forward and
backward. `neighborhood_attention` stands for `na1d`, `na2d` and `na3d`; the modules
read state dicts of NATTEN's own, with `rpb` of those before 0.20.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from ..autocast import autocasts
from ..checks import (
    check_count,
    check_device,
    check_dtype,
    check_flag,
    check_floating,
    check_like,
    check_probability,
    check_scale,
    check_shape,
    one_line,
)
from ..errors import ShapeError
from ..ops import attention
from ..ranges import neighborhood_ranges
from ..terms import GridTerms, OffsetTable, Terms
from ..traced_sizes import keep_grid
from .dilation import Dilation

__all__ = [
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "NeighborhoodAttention3D",
    "neighborhood_attention",
]

T = TypeVar("T", int, bool)

_MOST_AXES = 3


def neighborhood_attention(
    query: Float[Tensor, "b *grid h d"],
    key: Float[Tensor, "b *grid g d"],
    value: Float[Tensor, "b *grid g dv"],
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] | None = 1,
    is_causal: bool | Sequence[bool] = False,
    scale: float | None = None,
    *,
    rpb: Float[Tensor, "h *offsets"] | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "b *grid h dv"]:
    """What each token of a line, an image or a volume reads from its neighbourhood.

    As NATTEN's `na1d`, `na2d` and `na3d`, without their `additional_keys`, `additional_values` and
    arguments of tile shapes, and with two differences: there may be biases, and a map smaller than
    a neighbourhood is no error: its tokens see all of it. (Modules of NATTEN before 0.17 padded it,
    with tokens that took part.)

    Args:
        query: heads behind the tokens, as in NATTEN.
        key: query head `n` reads key head `n // (h // g)`.
        value: likewise.
        kernel_size: tokens of a neighbourhood, along each axis or along all of them.
        stride: so many queries share the neighbourhood of the middle one.
        dilation: steps in which a neighbourhood's tokens are counted; None: 1, as NAT has it.
        is_causal: whether a neighbourhood ends at its query.
        scale: of the products; None: `1 / sqrt(d)`.
        rpb: B of the formula, in logits, `2 k - 1` along each axis, offset 0 in the middle.
        dropout: probability that a weight is dropped.
        backend: as in `relpos.attention`.

    Raises:
        ShapeError: if the tensors do not fit each other.
        ValueError: if a number is out of range, or there is not one for each axis.
        TypeError: if an argument is of another kind.

    >>> x = torch.zeros(1, 8, 8, 2, 4)
    >>> neighborhood_attention(x, x, x, 3, rpb=torch.zeros(2, 5, 5)).shape
    torch.Size([1, 8, 8, 2, 4])
    """
    name = "neighborhood_attention"
    grid = _check_tokens(name, query, key, value)
    sizes, strides, steps, causal = _settings(
        name, len(grid), kernel_size, stride, dilation, is_causal
    )
    query = keep_grid(query, 1, len(grid))
    check_scale(name, scale, positive=False)
    check_probability(name, "dropout", dropout)
    dilated = Dilation(grid, steps)
    q, k, v = (dilated.split(x.movedim(-2, 1)) for x in (query, key, value))
    ranges = dilated.ranges(
        lambda axis, length: neighborhood_ranges(
            length, sizes[axis], strides[axis], causal=causal[axis], device=q.device
        ),
        batch=query.shape[0],
    )
    terms = _terms(name, rpb, q, dilated.grid, sizes)
    out = attention(
        q.flatten(2, -2), k.flatten(2, -2), v.flatten(2, -2), terms, key_ranges=ranges,
        scale=scale, dropout=dropout, backend=backend,
    )  # fmt: skip
    return dilated.join(out.unflatten(2, dilated.grid)).movedim(1, -2)


def _terms(
    name: str, rpb: Tensor | None, q: Tensor, grid: tuple[int, ...], sizes: tuple[int, ...]
) -> Terms | GridTerms:
    """Biases of a neighbourhood as those of all offsets of a grid, of which most are not seen."""
    if rpb is None:
        return GridTerms(grid)
    axes = [f"r{axis}" for axis in range(len(grid))]
    widths = {axis: 2 * size - 1 for axis, size in zip(axes, sizes, strict=True)}
    check_shape(name, "rpb", rpb, " ".join(["h", *axes]), {"h": q.shape[1]} | widths)
    _check_like(name, "rpb", rpb, q)
    if len(grid) == 1:
        return GridTerms(grid, (Terms(bias=OffsetTable(rpb, first=1 - sizes[0])),))
    more = [n - size for n, size in zip(grid, sizes, strict=True) for _ in range(2)]
    return GridTerms(grid, joint_bias=pad(rpb, more[::-1]))


def _check_tokens(name: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The grid of the tokens, if queries, keys and values fit each other."""
    check_floating(name, "query", query)
    grid = tuple(query.shape[1:-2])
    if not 1 <= len(grid) <= _MOST_AXES or 0 in grid:
        raise ShapeError(
            f"{name}: query must be (b, *grid, h, d) with 1 to {_MOST_AXES} axes of the grid, none "
            f"of them empty, got {tuple(query.shape)}"
        )
    axes = [f"n{axis}" for axis in range(len(grid))]
    sizes = {"b": query.shape[0], **dict(zip(axes, grid, strict=True))}
    of_tokens = " ".join(["b", *axes])
    check_shape(name, "key", key, f"{of_tokens} g d", sizes | {"d": query.shape[-1]})
    check_shape(name, "value", value, f"{of_tokens} g dv", sizes | {"g": key.shape[-2]})
    for argument, x in (("key", key), ("value", value)):
        _check_like(name, argument, x, query)
    heads, kv_heads = query.shape[-2], key.shape[-2]
    if not kv_heads or heads % kv_heads:
        raise ShapeError(f"{name}: key must have a divisor of h={heads} heads, got {kv_heads}")
    return grid


def _check_like(name: str, argument: str, x: Tensor, query: Tensor) -> None:
    """Autocast casts what is in another dtype."""
    check_floating(name, argument, x)
    if autocasts(query):
        check_device(name, argument, x, query, "query is")
    else:
        check_like(name, argument, x, query, "query is")


def _settings(
    name: str,
    axes: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    dilation: int | Sequence[int] | None,
    is_causal: bool | Sequence[bool],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[bool, ...]]:
    """The settings of each axis, checked; no dilation is one of 1."""
    sizes, strides, steps = (
        tuple(
            check_count(name, argument if given is x else f"{argument}[{axis}]", x)
            for axis, x in enumerate(_for_each_axis(name, argument, given, axes))
        )
        for argument, given in (
            ("kernel_size", kernel_size), ("stride", stride),
            ("dilation", 1 if dilation is None else dilation),
        )
    )  # fmt: skip
    if any(of > size for of, size in zip(strides, sizes, strict=True)):
        raise ValueError(f"{name}: stride must be at most kernel_size={sizes}, got {strides}")
    causal = _for_each_axis(name, "is_causal", is_causal, axes)
    for flag in causal:
        check_flag(name, "is_causal", flag)
    return sizes, strides, steps, causal


def _for_each_axis(name: str, argument: str, given: T | Sequence[T], axes: int) -> tuple[T, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        one: Any = given  # a text is refused later
        return (one,) * axes
    if len(given) != axes:
        raise ValueError(
            f"{name}: {argument} must be one, or one for each of {axes} axes, got {one_line(given)}"
        )
    return tuple(given)


class _NeighborhoodAttention(nn.Module):
    """A base of the modules, which differ in how many axes a map has."""

    axes: int

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] | None = 1,
        is_causal: bool | Sequence[bool] = False,
        rel_pos_bias: bool = True,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_flag(name, "rel_pos_bias", rel_pos_bias)
        check_flag(name, "qkv_bias", qkv_bias)
        self.embed_dim = check_count(name, "embed_dim", embed_dim)
        self.num_heads = check_count(name, "num_heads", num_heads)
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"{name}: embed_dim must be a multiple of num_heads={num_heads}, got {embed_dim}"
            )
        check_dtype(name, dtype)
        self.kernel_size, self.stride, self.dilation, self.is_causal = _settings(
            name, self.axes, kernel_size, stride, dilation, is_causal
        )
        self.scale = check_scale(name, qk_scale, positive=False, argument="qk_scale")
        self.attn_drop = check_probability(name, "attn_drop", attn_drop)
        to = {"device": device, "dtype": dtype}
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias, **to)
        self.rpb: nn.Parameter | None = None
        if rel_pos_bias:
            self.rpb = nn.Parameter(
                torch.empty(num_heads, *(2 * k - 1 for k in self.kernel_size), **to)
            )
        self.proj = nn.Linear(embed_dim, embed_dim, **to)
        self.proj_drop = nn.Dropout(check_probability(name, "proj_drop", proj_drop))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw projections as torch does, and biases as NATTEN did, with a deviation of 0.02."""
        self.qkv.reset_parameters()
        self.proj.reset_parameters()
        if self.rpb is not None:
            nn.init.normal_(self.rpb, std=0.02)

    def forward(self, x: Float[Tensor, "b *grid e"]) -> Float[Tensor, "b *grid e"]:
        """What each token reads from its neighbourhood.

        Args:
            x: tokens of a map.

        Raises:
            ShapeError: if `x` has another width, or another number of axes.
        """
        name = type(self).__name__
        check_floating(name, "x", x)
        if x.ndim != self.axes + 2 or x.shape[-1] != self.embed_dim:
            raise ShapeError(
                f"{name}: x must be (b, *grid, e) with {self.axes} axes of the grid and "
                f"e={self.embed_dim}, got {tuple(x.shape)}"
            )
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        output = neighborhood_attention(
            q, k, v, self.kernel_size, stride=self.stride, dilation=self.dilation,
            is_causal=self.is_causal, scale=self.scale, rpb=self.rpb,
            dropout=self.attn_drop if self.training else 0.0,
        )  # fmt: skip
        return self.proj_drop(self.proj(output.flatten(-2)))

    def extra_repr(self) -> str:
        """Width, heads, and what a neighbourhood is."""
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, "
            f"kernel_size={self.kernel_size}, stride={self.stride}, dilation={self.dilation}, "
            f"is_causal={self.is_causal}, rel_pos_bias={self.rpb is not None}"
        )


class NeighborhoodAttention1D(_NeighborhoodAttention):
    """Self-attention of each token of a line `(b, i, e)` to its neighbourhood.

    Args:
        embed_dim: width e of input and output.
        num_heads: heads h; each is `e / h` wide.
        kernel_size: tokens of a neighbourhood, along each axis or along all of them.
        stride: as in `neighborhood_attention`.
        dilation: as in `neighborhood_attention`.
        is_causal: as in `neighborhood_attention`.
        rel_pos_bias: whether there are learned biases, `rpb`; NATTEN has none since 0.20.
        qkv_bias: whether the projection of queries, keys and values has biases.
        qk_scale: of the scores; None: `1 / sqrt(e / h)`.
        attn_drop: probability that a weight is dropped in training.
        proj_drop: probability that a number of the output is dropped in training.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if the heads do not divide the width, or a number is out of range.

    >>> NeighborhoodAttention1D(8, 2, kernel_size=3)(torch.zeros(1, 6, 8)).shape
    torch.Size([1, 6, 8])
    """

    axes = 1


class NeighborhoodAttention2D(_NeighborhoodAttention):
    """Self-attention of each token of a map `(b, height, width, e)` to its neighbourhood.

    Arguments and errors are those of `NeighborhoodAttention1D`.

    >>> layer = NeighborhoodAttention2D(8, 2, kernel_size=7, dilation=2)
    >>> layer(torch.zeros(1, 14, 15, 8)).shape
    torch.Size([1, 14, 15, 8])
    """

    axes = 2


class NeighborhoodAttention3D(_NeighborhoodAttention):
    """Self-attention of each token of a volume `(b, depth, height, width, e)` to its neighbourhood.

    Arguments and errors are those of `NeighborhoodAttention1D`.

    >>> layer = NeighborhoodAttention3D(8, 2, kernel_size=(3, 5, 5), is_causal=(True, False, False))
    >>> layer(torch.zeros(1, 4, 6, 6, 8)).shape
    torch.Size([1, 4, 6, 6, 8])
    """

    axes = 3
