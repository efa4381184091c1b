"""Gradients of the tables: one kernel sums their inner rows, and one their two end rows.

Of a bias in a narrow band the dq kernel has summed the inner rows already (`band_sums.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..layouts import number_of_layouts
from . import launch
from .band_sums import BandSums
from .kernels.backward_tables import dtables_kernel, end_rows_kernel
from .launch import run_largest_that_fits, run_tiles
from .prepared_call import PreparedCall
from .saved import Saved
from .tensor_args import token_tensor
from .tuning import TileShape, count_tiles, next_power_of_two, split_count

__all__ = [
    "EndRows",
    "add_end_rows",
    "heads_of_tables",
    "table_gradients",
]


class EndRows(NamedTuple):
    """Sums over the pairs that select the window's first row, and its last one, in float32.

    Args:
        of_queries: `(4, b, h, i)`, over keys: of `dS` for both rows, where the table of keys or the
            bias needs it, then of the weights, where that of values does.
        of_keys: `(2, b, h, j)`, over queries: of `dS`; None unless the table of queries needs it.
    """

    of_queries: Tensor
    of_keys: Tensor | None


def table_gradients(
    call: PreparedCall,
    saved: Saved,
    delta: Tensor,
    end_rows: EndRows,
    band_sums: BandSums | None,
    needed: frozenset[str],
) -> dict[str, Tensor]:
    """The gradient of each table's rows, by name.

    Args:
        call: of the forward pass.
        saved: of the forward pass.
        delta: `(b, h, i)`, of the dq kernel.
        end_rows: of the dq and dkdv kernels.
        band_sums: of the dq kernel; None where it has not summed what the bias needs.
        needed: names of tensors.
    """
    sums = {}
    names = tuple(name for name in call.tables if name in needed)
    if band_sums is not None:
        sums["bias"] = band_sums.gradient(call, heads_of_tables(call, ("bias",))).unsqueeze(0)
        names = tuple(name for name in names if name != "bias")
    if names:
        sums |= _sums_by_offset(call, saved, delta, names, heads_of_tables(call, names))
    return add_end_rows(call, saved, end_rows, sums)


def heads_of_tables(call: PreparedCall, names: tuple[str, ...]) -> int:
    """1 where all heads share all of these tables, else their number."""
    return max(call.expanded_tables[name].shape[0] for name in names)


def add_end_rows(
    call: PreparedCall, saved: Saved, end_rows: EndRows, sums: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The gradient of each table's rows, by name, from the sums for all others.

    Args:
        call: of the forward pass.
        saved: of the forward pass.
        end_rows: of the other kernels.
        sums: `(splits, heads of the tables, rows[, d])` for each table, scaled; may be written to.
            What the end rows hold does not count.
    """
    gradients = {}
    for name, x in sums.items():
        total = x[0] if x.shape[0] == 1 else x.sum(0)
        # The window's first row and its last.
        _sum_end_rows(call, saved, end_rows, name, total[:, :: total.shape[1] - 1])
        if call.expanded_tables[name].shape[0] == 1:
            total = total.sum(0, keepdim=True)
        gradients[name] = call.table_window.expand_backward(total, call.tables[name])
    return gradients


def _sums_by_offset(
    call: PreparedCall,
    saved: Saved,
    delta: Tensor,
    names: tuple[str, ...],
    heads: int,
) -> dict[str, Tensor]:
    """`(splits, heads, rows[, d])` for each name; neither end row is written."""
    device, rows = call.q.device, call.table_window.num_rows
    sums: dict[str, Tensor] = {}

    def run(shape: TileShape) -> None:
        programs = count_tiles(rows - 2, shape.n) * heads
        items = call.batch * (call.heads // heads) * count_tiles(call.seqlen_q, shape.m)
        splits = split_count(programs, items, device)
        for name in names:
            width = () if name == "bias" else (call.expanded_tables[name].shape[2],)
            sums[name] = call.q.new_empty((splits, heads, rows, *width), dtype=torch.float32)
        if not programs:
            return
        run_tiles(
            dtables_kernel, call, programs * splits, saved.softmax, token_tensor(saved.d_out),
            delta, *(sums.get(name) for name in ("keys", "queries", "bias", "values")),
            call.batch, heads, splits, shape=shape, known=saved.known,
            spec=saved.specialization(call, shape),
            NEEDS_D_KEYS="keys" in names, NEEDS_D_QUERIES="queries" in names,
            NEEDS_D_BIAS="bias" in names, NEEDS_D_VALUES="values" in names,
        )  # fmt: skip

    run_largest_that_fits("dtables", call, run)
    return sums


def _sum_end_rows(
    call: PreparedCall, saved: Saved, end_rows: EndRows, name: str, gradients: Tensor
) -> None:
    """Write the gradients of the window's end rows: `(heads of the tables, 2[, d])`."""
    d_scores, weights = end_rows.of_queries[:2], end_rows.of_queries[2:]
    if name == "bias":
        axes = (1, 3) if gradients.shape[0] > 1 else (1, 2, 3)
        torch.sum(d_scores, axes, out=gradients.mT if len(axes) == 2 else gradients[0])
    elif name == "keys":
        _sum_products(call, saved, d_scores, call.rel_queries, call.scale, gradients)
    elif name == "values":
        _sum_products(call, saved, weights, saved.d_out, 1.0, gradients)
    else:
        assert end_rows.of_keys is not None
        _sum_products(call, saved, end_rows.of_keys, call.k, call.scale, gradients)


def _sum_products(
    call: PreparedCall, saved: Saved, numbers: Tensor, x: Tensor, scale: float, gradients: Tensor
) -> None:
    """Write `scale sum_n numbers[end, b, h, n] x[b, h, n]`; heads may share `x`.

    Args:
        call: of the forward pass.
        saved: of the forward pass.
        numbers: `(2, b, h, tokens)`.
        x: `(b, h or g, tokens, d)`.
        scale: of the sums.
        gradients: `(1, 2, d)`, to sum over the heads, or `(h, 2, d)`.
    """
    tokens, width = x.shape[2:]
    table_heads = gradients.shape[0]

    def run(shape: TileShape) -> None:
        items = call.batch * (call.heads // table_heads) * count_tiles(tokens, shape.m)
        splits = split_count(table_heads, items, x.device)
        sums = x.new_empty(splits, table_heads, 2, width, dtype=torch.float32)
        launch.run_programs(
            end_rows_kernel, splits * table_heads, numbers, token_tensor(x), sums, call.batch,
            call.heads, call.heads // x.shape[1], tokens, splits, table_heads, scale, shape=shape,
            known=(call.plan.known, saved.known, number_of_layouts((numbers, x))), M=shape.m,
            WIDTH=width, BLOCK=next_power_of_two(max(width, 16)),
            SPEC=saved.specialization(call, shape),
        )  # fmt: skip
        torch.sum(sums, 0, out=gradients)

    run_largest_that_fits("end_rows", call, run)
