"""One call of the op for each kind of term, for the checks on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from relpos import (
    GridTerms,
    OffsetTable,
    Terms,
    attention,
    chunk_ranges,
    intersect_ranges,
    neighborhood_ranges,
    padding_ranges,
)

__all__ = ["CUDA", "Call", "calls", "outcome"]

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
WIDE_REACH = 300  # offsets to either side: of more rows than `tuning.NARROW`


@dataclass(frozen=True)
class Call:
    """One call of the op.

    Args:
        leaves: queries, keys, values, and the tables.
        make: the terms, from the tables.
        settings: other arguments of `relpos.attention`.
        backend: by name.
    """

    leaves: tuple[Tensor, ...]
    make: Callable[..., Terms | GridTerms]
    settings: dict[str, Any]
    backend: str

    def run(self, *leaves: Tensor) -> Tensor:
        """The output."""
        q, k, v, *tables = leaves
        return attention(q, k, v, self.make(*tables), backend=self.backend, **self.settings)

    def both(self) -> list[Tensor]:
        """The output and the gradients of all leaves, the same dropout each time."""
        torch.manual_seed(0)
        return outcome(self.run(*self.leaves), self.leaves)

    def reference(self, dtype: torch.dtype) -> list[Tensor]:
        """The same by the reference in another dtype."""
        leaves = tuple(leaf.detach().to(dtype).requires_grad_() for leaf in self.leaves)
        return replace(self, leaves=leaves, backend="reference").both()


def outcome(output: Tensor, leaves: tuple[Tensor, ...]) -> list[Tensor]:
    """The output and the gradients of all leaves."""
    return [output.detach(), *torch.autograd.grad(output, leaves, ramp(output))]


def ramp(like: Tensor) -> Tensor:
    """A gradient that is not the same everywhere."""
    return torch.linspace(-1, 1, like.numel(), device=like.device).view(like.shape).to(like.dtype)


def calls(backend: str, side: int, width: int, dtype: torch.dtype) -> dict[str, Call]:
    """One call of each kind of term on `side * (side + 2)` tokens."""
    length, batch, heads, reach = side * (side + 2), 2, 4, 5
    draw = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(DEVICE, dtype).requires_grad_()

    def call(
        make: Callable[..., Terms | GridTerms],
        *tables: tuple[int, ...],
        key_heads: int = heads,
        **settings: Any,
    ) -> Call:
        shapes = ((batch, heads, length, width), *[(batch, key_heads, length, width)] * 2, *tables)
        return Call(tuple(leaf(*shape) for shape in shapes), make, settings, backend)

    def table(rows: Tensor) -> OffsetTable:
        """Its middle row is of offset 0."""
        return OffsetTable(rows, -(rows.shape[-2 if rows.ndim > 2 else -1] // 2))

    rows, past = 2 * reach + 1, (1, length, width)
    vectors, scalars = (1, rows, width), (heads, rows)
    wide = (1, 2 * WIDE_REACH + 1, width)
    sides = ((1, 2 * side - 1, width), (1, 2 * side + 3, width))
    shape, logits = (side, side + 2), (heads, 2 * side - 1, 2 * side + 3)
    # Of images of two sizes.
    inside = [padding_ranges(torch.tensor([n, n - 2], device=DEVICE), n) for n in shape]
    documents = (torch.arange(length, device=DEVICE) // 7)[None]
    mask = (torch.rand(batch, 1, 1, length, generator=draw) > 0.3).to(DEVICE)
    added = torch.randn(batch, 1, 1, length, generator=draw).to(DEVICE, dtype)

    def shaw(keys: Tensor, values: Tensor) -> Terms:
        return Terms(keys=table(keys), values=table(values))

    def all_tables(keys: Tensor, queries: Tensor, values: Tensor) -> Terms:
        return Terms(keys=table(keys), queries=table(queries), values=table(values))

    def huang(keys: Tensor) -> Terms:
        return Terms(keys=OffsetTable(keys, 1 - length))

    def bias(scalars: Tensor) -> Terms:
        return Terms(bias=table(scalars))

    def relative(keys: Tensor, q_rel: Tensor) -> Terms:
        return Terms(keys=OffsetTable(keys, 1 - rows, "zero"), q_rel=q_rel)

    def grid(up: Tensor, along: Tensor) -> GridTerms:
        up_rows, along_rows = OffsetTable(up, 1 - side), OffsetTable(along, -1 - side)
        return GridTerms(shape, (Terms(keys=up_rows), Terms(keys=along_rows)))

    def grid_all(up: Tensor, along: Tensor) -> GridTerms:
        """All terms along both axes, from one table each."""
        axes = (OffsetTable(up, 1 - side), OffsetTable(along, -1 - side))
        return GridTerms(shape, tuple(Terms(keys=x, queries=x, values=x) for x in axes))

    return {
        "no terms": call(Terms, key_heads=2, causal=True),
        "Shaw keys + values": call(shaw, vectors, vectors),
        "per head, grouped": call(shaw, (heads, rows, width), (heads, rows, width), key_heads=2),
        "Huang": call(huang, past, causal=True),
        "queries": call(lambda rows: Terms(queries=table(rows)), vectors),
        "bias": call(bias, scalars),
        "q_rel": call(relative, (1, rows, 16), (batch, heads, length, 16), causal=True),
        "grid": call(grid, *sides),
        "grid, causal": call(grid, *sides, causal=True),
        "grid, all": call(grid_all, *sides),
        "joint_bias": call(lambda joint_bias: GridTerms(shape, joint_bias=joint_bias), logits),
        "documents": call(bias, scalars, documents=documents),
        "mask": call(shaw, vectors, vectors, mask=mask),
        "mask, additive": call(shaw, vectors, vectors, mask=added),
        "softcap": call(shaw, vectors, vectors, softcap=5.0),
        "wide tables": call(all_tables, wide, wide, wide),
        "dropout": call(shaw, vectors, vectors, dropout=0.1),
        "window": call(shaw, vectors, vectors, window=(9, 4), softcap=5.0),
        "chunks": call(bias, scalars, key_ranges=chunk_ranges(length, 6, 1, device=DEVICE)),
        "grid, window": call(grid, *sides, window=((2, 1), (1, 2))),
        "neighborhoods": call(
            lambda joint_bias: GridTerms(shape, joint_bias=joint_bias),
            logits,
            key_ranges=[
                intersect_ranges(neighborhood_ranges(n, 3, device=DEVICE), of_images)
                for n, of_images in zip(shape, inside, strict=True)
            ],
        ),
    }
