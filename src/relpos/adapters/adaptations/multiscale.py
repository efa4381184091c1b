"""MViTv2 (Li et al. 2022, section 4.1): queries, keys and values pooled over an image or a video.

    s_ij = scale * q_i . k_j + q_i . H[y_i - y_j] + q_i . W[x_i - x_j]
    o_i  = sum_j softmax(s_i)_j v_j + q_i

Of a video there is a third table, T. Along each axis coordinates count steps of the finer of the
two grids, of the queries and of the keys. The tables are shared by the heads and not scaled. Class
tokens, ahead of the grid, have no positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from ...positions.resizing import resize_rows
from ...terms import GridTerms, OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import split_qkv

__all__ = ["MultiscaleAttention", "PooledAttention", "add_queries"]


class MultiscaleAttention(Adapted):
    """A base of what attends from one grid to another."""

    scheme = "keys of each axis of a pooled grid"
    num_heads: int
    qkv: nn.Module

    def multiscale_attention(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b h j d"],
        v: Float[Tensor, "b h j d"],
        query_shape: Sequence[int],
        shape: Sequence[int],
        *,
        scale: float,
        prefix: int = 0,
    ) -> Float[Tensor, "b h i d"]:
        """The output of each head.

        Args:
            q: queries, pooled.
            k: keys, likewise.
            v: values, likewise.
            query_shape: the grid of the queries.
            shape: the grid of the keys.
            scale: of the products.
            prefix: number of tokens ahead of either grid.
        """
        grids = [*zip(query_shape, shape, strict=True)]
        tables = [
            self.resized(rows, *sizes) for rows, sizes in zip(self.tables(), grids, strict=True)
        ]
        # While sizes are symbols, one that divides would become a condition of the program.
        traced = any(isinstance(size, torch.SymInt) for sizes in grids for size in sizes)
        if not traced and all(max(sizes) % min(sizes) == 0 for sizes in grids):
            axes = tuple(
                Terms(keys=_rows_by_offset((rows / scale).to(q.dtype), *sizes))
                for rows, sizes in zip(tables, grids, strict=True)
            )
            terms = GridTerms(tuple(shape), axes, query_shape=tuple(query_shape), prefix=prefix)
            output, _ = attend(q, k, v, terms, scale=scale)
        else:
            # Places between two rows are rounded down, where `GridTerms` would interpolate.
            by_pair = [
                rows[self.row_of_pair(*sizes, q.device).long()].to(q.dtype)
                for rows, sizes in zip(tables, grids, strict=True)
            ]
            biases = _axis_biases(q[:, :, prefix:], by_pair) / scale
            marks = _coordinate_marks(shape, like=k)
            before = (0, 0, prefix, 0)
            output, _ = attend(
                torch.cat([q, pad(biases, before)], -1),
                torch.cat([k, pad(marks, before).expand(*k.shape[:2], -1, -1)], -1),
                v, scale=scale,
            )  # fmt: skip
        return output.transpose(1, 2)

    def tables(self) -> list[Float[Tensor, "r d"]]:
        """The tables of the axes, in the order of the grid's sizes."""
        raise NotImplementedError

    def resized(self, rows: Float[Tensor, "r d"], queries: int, keys: int) -> Float[Tensor, "n d"]:
        """A table for an axis of other sizes than it was made for.

        Args:
            rows: in the order of query minus key.
            queries: size of their axis.
            keys: likewise.
        """
        return resize_rows(rows[None], (2 * max(queries, keys) - 1,))[0]

    def row_of_pair(
        self, queries: int, keys: int, device: torch.device
    ) -> Float[Tensor, "queries keys"]:
        """The row of each coordinate of a query and of a key, before it is rounded down.

        Args:
            queries: size of their axis.
            keys: likewise.
            device: of the result.
        """
        step, key_step = max(keys / queries, 1.0), max(queries / keys, 1.0)
        # In this order: rounding decides about whole numbers.
        at = torch.arange(queries, device=device)[:, None] * step
        return at - torch.arange(keys, device=device) * key_step + (keys - 1) * key_step


class PooledAttention(MultiscaleAttention):
    """A base of what has a pool and a norm for each of queries, keys and values, or none.

    torchvision's pools are modules that take the grid, and the token ahead of it, themselves.
    """

    scale: float
    residual_pooling: bool
    pool_q: nn.Module | None
    pool_k: nn.Module | None
    pool_v: nn.Module | None
    norm_q: nn.Module | None
    norm_k: nn.Module | None
    norm_v: nn.Module | None
    proj: nn.Module

    def attended(
        self, x: Float[Tensor, "b i e"], shape: Sequence[int], *, prefix: int, kept: int = 0
    ) -> tuple[Float[Tensor, "b j o"], Sequence[int]]:
        """The module's output, and the grid of the queries.

        Args:
            x: of the tokens.
            shape: of their grid.
            prefix: number of tokens ahead of it.
            kept: number of tokens ahead of it to which queries are not added.
        """
        q, k, v = split_qkv(self.qkv(x), heads=self.num_heads)
        q, query_shape = _pooled(q, shape, self.pool_q, self.norm_q, prefix)
        k, key_shape = _pooled(k, shape, self.pool_k, self.norm_k, prefix)
        v, _ = _pooled(v, shape, self.pool_v, self.norm_v, prefix)
        output = self.multiscale_attention(
            q, k, v, query_shape, key_shape, scale=self.scale, prefix=prefix
        )
        if self.residual_pooling:
            output = add_queries(output, q, kept=kept)
        return self.proj(output.transpose(1, 2).flatten(2)), query_shape


def add_queries(
    output: Float[Tensor, "b h i d"], q: Float[Tensor, "b h i d"], *, kept: int
) -> Float[Tensor, "b h i d"]:
    """The output of each head and its queries.

    Args:
        output: of each head.
        q: queries, pooled.
        kept: number of first tokens to which nothing is added.
    """
    return output + (pad(q[:, :, kept:], (0, 0, kept, 0)) if kept else q)


def _pooled(
    x: Float[Tensor, "b h i d"], shape: Sequence[int], pool: nn.Module | None,
    norm: nn.Module | None, prefix: int,
) -> tuple[Float[Tensor, "b h j d"], Sequence[int]]:  # fmt: skip
    """What modules make of the tokens of a grid, but for those ahead of it, and their new grid."""
    if pool is not None:
        before, tokens = x.tensor_split((prefix,), dim=2)
        maps = pool(tokens.flatten(0, 1).mT.unflatten(2, tuple(shape)))
        shape = maps.shape[2:]
        x = torch.cat([before, maps.flatten(2).mT.unflatten(0, x.shape[:2])], dim=2)
    return (x if norm is None else norm(x)), shape


def _rows_by_offset(rows: Float[Tensor, "r d"], queries: int, keys: int) -> OffsetTable:
    """A table in the order of key minus query, of the offsets that there are.

    Args:
        rows: in the order of query minus key.
        queries: size of their axis.
        keys: likewise; one size divides the other.
    """
    finer = max(queries, keys)
    back, ahead = (size - 1 for size in (queries, keys))
    back, ahead = back * (finer // queries), ahead * (finer // keys)
    return OffsetTable(rows[None, : back + ahead + 1].flip(1), -back)


def _axis_biases(
    q: Float[Tensor, "b h i d"], by_pair: list[Float[Tensor, "_m _n d"]]
) -> Float[Tensor, "b h i s"]:
    """Each query's biases at the keys' coordinates along the first axis, then the second.

    Args:
        q: queries of the grid.
        by_pair: of each axis the row of each coordinate of a query and of a key.
    """
    shape = [rows.shape[0] for rows in by_pair]  # `len` makes constants of sizes
    on_grid = q.unflatten(2, shape)
    biases = []
    for axis, rows in enumerate(by_pair):
        along = on_grid.movedim(2 + axis, 2)
        products = along.flatten(3, -2) @ rows.mT
        biases.append(products.unflatten(3, along.shape[3:-1]).movedim(2, 2 + axis).flatten(2, -2))
    return torch.cat(biases, dim=-1)


def _coordinate_marks(shape: Sequence[int], *, like: Tensor) -> Float[Tensor, "j s"]:
    """Each key's marks: 1 at its coordinate along the first axis, at that along the second, ...

    Args:
        shape: the grid of the keys.
        like: of the dtype and on the device of the result.
    """
    grids = torch.meshgrid(*(torch.arange(n, device=like.device) for n in shape), indexing="ij")
    # Not `one_hot`, which makes constants of sizes.
    marks = [
        coords.flatten()[:, None] == torch.arange(n, device=like.device)
        for coords, n in zip(grids, shape, strict=True)
    ]
    return torch.cat(marks, dim=-1).to(like.dtype)
