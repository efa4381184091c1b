"""The launches of one call: sizes of tiles, outputs, and what is summed up afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton import OutOfResources

from .call import Settings, power_of_two
from .grid import joint_chunks
from .kernels.by_key import by_key_kernel
from .kernels.by_offset import by_offset_kernel, ends_kernel
from .kernels.by_query import by_query_kernel
from .kernels.forward import forward_kernel
from .kernels.mask import mask_kernel
from .problem import Problem, rows_contiguous, rows_of
from .tuning import Shape, parts_of, program_count, shapes_of
from .window import line_chunks

__all__ = ["backward", "forward"]


def launch(kernel: Any, programs: int, *arguments: Any, shape: Shape, **constants: Any) -> None:
    """Run `kernel` on the current stream."""
    kernel[(programs,)](*arguments, **constants, num_warps=shape.warps, num_stages=shape.stages)


def _fitting(kernel: str, problem: Problem, run: Callable[[Shape], None]) -> None:
    """Run with the largest tiles for which the device has memory enough on its processors."""
    *larger, smallest = shapes_of(kernel, problem)
    with torch.cuda.device_of(problem.q):
        for shape in larger:
            try:
                return run(shape)
            except OutOfResources:
                pass  # nothing ran
        run(smallest)


def _tiles(count: int, size: int) -> int:
    return -(-count // size)


def forward(problem: Problem, need_places: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, log-sum-exp in nats, what backward needs, weights by place of a grid (`ops.py`)."""
    q, v = problem.q, problem.v
    lead = tuple(q.shape[:3])
    wide = torch.float32
    out = q.new_empty((*lead, v.shape[3]), dtype=wide if need_places else q.dtype)
    lse = q.new_empty(lead, dtype=wide)
    softmax = q.new_empty((2, *lead), dtype=wide)
    columns = sum(problem.grid.shape) if problem.grid is not None and need_places else 0
    places = q.new_empty((*lead, columns) if columns else (0,), dtype=wide)
    if problem.empty:
        return out.zero_(), lse.fill_(-torch.inf), softmax.zero_(), places.zero_()
    slabs = len(problem.rows.keys() & {"keys", "values", "queries"})

    def run(shape: Shape) -> None:
        settings = problem.settings(
            shape.m, shape.n, slabs=slabs, places=need_places, besides=(out, places)
        )
        tiles = problem.batch * problem.heads * _tiles(problem.queries, shape.m)
        programs = program_count(tiles, q.device, slabs > 0)
        launch(
            forward_kernel, programs, *problem.call(settings, tiles, programs), rows_of(out), lse,
            softmax, rows_of(places) if need_places else None, S=settings, shape=shape,
        )  # fmt: skip

    _fitting("forward", problem, run)
    return out, lse, softmax, places


@dataclass(frozen=True)
class Saved:
    """What backward needs of the forward pass, and what flows into it.

    Args:
        out: `(b, h, i, dv)`.
        softmax: `(2, b, h, i)`: the largest score of each row, and 1 over the sum.
        places: `(b, h, i, s)`, or None.
        d_out: as `out`.
        d_lse: `(b, h, i)`, or None.
        d_places: as `places`, or None.
    """

    out: Tensor
    softmax: Tensor
    places: Tensor | None
    d_out: Tensor
    d_lse: Tensor | None
    d_places: Tensor | None

    @classmethod
    def of(
        cls,
        problem: Problem,
        out: Tensor,
        softmax: Tensor,
        places: Tensor,
        d_out: Tensor,
        d_lse: Tensor | None,
        d_places: Tensor | None,
    ) -> Saved:
        """The same in the layout and the dtype that the kernels take."""
        # With weights by place, the output is in float32.
        d_out = rows_contiguous(d_out.to(problem.q.dtype))
        d_lse = None if d_lse is None else d_lse.contiguous()
        if places.ndim == 1:
            return cls(out, softmax, None, d_out, d_lse, None)
        d_places = torch.zeros_like(places) if d_places is None else rows_contiguous(d_places)
        return cls(out, softmax, places, d_out, d_lse, d_places)


def backward(problem: Problem, saved: Saved, wanted: frozenset[str]) -> dict[str, Tensor]:
    """The gradients that are wanted, by name.

    Args:
        problem: the call.
        saved: of the forward pass.
        wanted: names of tensors.
    """
    return _Backward(problem, saved, wanted).run()


class _Backward:
    def __init__(self, problem: Problem, saved: Saved, wanted: frozenset[str]) -> None:
        self.problem, self.saved, self.wanted = problem, saved, wanted
        lead = problem.q.shape[:3]
        self.delta = problem.q.new_empty(lead, dtype=torch.float32)
        # Sums over the keys that meet the tables' end rows: of dS, then of the weights.
        self.learns = bool(wanted & problem.rows.keys())
        self.ends = problem.q.new_empty((4, *lead) if self.learns else (0,), dtype=torch.float32)
        self.key_ends: Tensor | None = None
        self.gradients: dict[str, Tensor] = {}

    def run(self) -> dict[str, Tensor]:
        """All gradients; the queries' side first, which finds `delta`."""
        problem = self.problem
        if problem.empty:
            return self._nothing()
        self._by_query()
        if self.wanted & {"k", "v", "queries", "by_query"}:
            self._by_key()
        if self.wanted & {*problem.rows, "joint_bias"}:
            self._by_offset()
        if "mask" in self.wanted:
            self._mask()
        return self.gradients

    def _nothing(self) -> dict[str, Tensor]:
        problem = self.problem
        tensors = {
            "q": problem.q, "k": problem.k, "v": problem.v, "q_rel": problem.p,
            "mask": problem.mask, "by_key": problem.by_key, "by_query": problem.by_query,
            "joint_bias": problem.joint_bias,
        } | {name: table.rows for name, table in problem.tables.items()}  # fmt: skip
        return {
            name: torch.zeros_like(tensors[name], memory_format=torch.contiguous_format)  # type: ignore[arg-type]
            for name in self.wanted
        }

    def _settings(self, shape: Shape, slabs: int) -> Settings:
        saved = self.saved
        return self.problem.settings(
            shape.m, shape.n, slabs=slabs, places=saved.d_places is not None,
            besides=(saved.out, saved.d_out, saved.places, saved.d_places),
        )  # fmt: skip

    def _by_query(self) -> None:
        problem, saved = self.problem, self.saved
        q, wanted = problem.q, self.wanted
        d_q = torch.empty_like(q, memory_format=torch.contiguous_format) if "q" in wanted else None
        d_p = None
        if problem.own_p and "q_rel" in wanted:
            d_p = torch.empty_like(problem.p, memory_format=torch.contiguous_format)
        d_by_key = None
        if "by_key" in wanted:
            assert problem.by_key is not None
            d_by_key = q.new_empty(*q.shape[:3], problem.by_key.shape[3], dtype=torch.float32)
        tables = problem.rows
        slabs = 2 * ("keys" in tables) + ("values" in tables) + ("queries" in tables)

        def run(shape: Shape) -> None:
            settings = self._settings(shape, slabs)
            tiles = problem.batch * problem.heads * _tiles(problem.queries, shape.m)
            programs = program_count(tiles, q.device, slabs > 0)
            launch(
                by_query_kernel, programs, *problem.call(settings, tiles, programs),
                rows_of(saved.out), saved.softmax, rows_of(saved.d_out), saved.d_lse,
                _rows(saved.places), _rows(saved.d_places), _rows(d_q), _rows(d_p),
                _rows(d_by_key), self.delta, self.ends, S=settings,
                D_LSE=saved.d_lse is not None, D_Q=d_q is not None, D_P=d_p is not None,
                D_BY_KEY=d_by_key is not None, D_TABLES=self.learns, shape=shape,
            )  # fmt: skip

        _fitting("by_query", problem, run)
        found = {"q": d_q, "q_rel": d_p, "by_key": d_by_key}
        self.gradients |= {name: x for name, x in found.items() if x is not None}
        if d_by_key is not None and problem.by_key is not None:
            self.gradients["by_key"] = d_by_key.sum_to_size(problem.by_key.shape)

    def _by_key(self) -> None:
        problem, saved = self.problem, self.saved
        d_k, d_v = (
            torch.empty_like(x, memory_format=torch.contiguous_format)
            for x in (problem.k, problem.v)
        )
        lead = (problem.batch, problem.heads, problem.keys)
        d_by_query = None
        if "by_query" in self.wanted:
            assert problem.by_query is not None
            columns = problem.by_query.shape[3]
            d_by_query = d_k.new_empty(*lead, columns, dtype=torch.float32)
        learns = "queries" in self.wanted
        if learns:
            self.key_ends = d_k.new_empty(2, *lead, dtype=torch.float32)
        tables = problem.rows
        slabs = ("keys" in tables) + ("values" in tables) + 2 * ("queries" in tables)

        def run(shape: Shape) -> None:
            settings = self._settings(shape, slabs)
            tiles = problem.batch * problem.groups * _tiles(problem.keys, shape.n)
            programs = program_count(tiles, d_k.device, slabs > 0)
            launch(
                by_key_kernel, programs, *problem.call(settings, tiles, programs), saved.softmax,
                rows_of(saved.d_out), self.delta, _rows(saved.d_places), rows_of(d_k),
                rows_of(d_v), _rows(d_by_query), self.key_ends, S=settings,
                D_BY_QUERY=d_by_query is not None, D_QUERIES=learns, shape=shape,
            )  # fmt: skip

        _fitting("by_key", problem, run)
        self.gradients |= {name: x for name, x in (("k", d_k), ("v", d_v)) if name in self.wanted}
        if d_by_query is not None:
            self.gradients["by_query"] = d_by_query

    def _by_offset(self) -> None:
        problem = self.problem
        if "joint_bias" in self.wanted:
            assert problem.joint_bias is not None
            heads, entries = problem.joint_bias.shape
            sums = self._sums_by_offset(heads, entries, ("bias",))
            self.gradients["joint_bias"] = sums["bias"].sum(0)
            return
        names = tuple(name for name in problem.rows if name in self.wanted)
        heads = max(problem.rows[name].shape[0] for name in names)
        for name, parts in self._sums_by_offset(heads, problem.window.rows, names).items():
            total = parts.sum(0)
            total[:, :: problem.window.rows - 1] = self._ends_of(name, heads)
            if name in ("keys", "queries"):
                total = total * problem.scale
            if problem.rows[name].shape[0] == 1:
                total = total.sum(0, keepdim=True)
            self.gradients[name] = problem.window.gathered(total, problem.tables[name])

    def _sums_by_offset(
        self, heads: int, entries: int, names: tuple[str, ...]
    ) -> dict[str, Tensor]:
        """`(parts, heads, entries[, d])` for each name; on a line zeros at both ends."""
        problem, saved, device = self.problem, self.saved, self.problem.q.device
        sums: dict[str, Tensor] = {}

        def run(shape: Shape) -> None:
            chunks = self._chunks(shape.n)
            each = chunks.shape[0] * heads
            items = problem.batch * (problem.heads // heads) * _tiles(problem.queries, shape.m)
            parts = parts_of(each, items, device)
            for name in names:
                width = () if name == "bias" else (problem.rows[name].shape[2],)
                sums[name] = torch.zeros(
                    parts, heads, entries, *width, dtype=torch.float32, device=device
                )
            if not each:
                return
            settings = self._settings(shape, 3 if "queries" in problem.rows else 2)
            programs = program_count(each * parts, device, True)
            launch(
                by_offset_kernel, programs, *problem.call(settings, each * parts, programs),
                saved.softmax, rows_of(saved.d_out), self.delta, _rows(saved.d_places), chunks,
                *(sums.get(name) for name in ("keys", "queries", "bias", "values")),
                problem.batch, heads, parts, entries, S=settings, D_KEYS="keys" in names,
                D_QUERIES="queries" in names, D_BIAS="bias" in names, D_VALUES="values" in names,
                shape=shape,
            )  # fmt: skip

        _fitting("by_offset", problem, run)
        return sums

    def _chunks(self, n: int) -> Tensor:
        problem = self.problem
        if "joint_bias" in self.wanted:
            assert problem.grid is not None
            return joint_chunks(problem.grid.shape, n, problem.q.device)
        return line_chunks(problem.first, problem.window.rows, n, problem.q.device)

    def _ends_of(self, name: str, table_heads: int) -> Tensor:
        """The gradient `(table_heads, 2[, d])` of the window's end rows, not yet scaled."""
        problem = self.problem
        if name == "bias":
            per_head = self.ends[:2].sum((1, 3)).mT
            return per_head if table_heads > 1 else per_head.sum(0, keepdim=True)
        if name == "queries":
            assert self.key_ends is not None
            numbers, x, repeat = self.key_ends, problem.k, problem.heads // problem.groups
        elif name == "keys":
            numbers, x, repeat = self.ends[:2], problem.p, 1
        else:
            numbers, x, repeat = self.ends[2:], self.saved.d_out, 1
        (shape,) = shapes_of("ends", problem)
        width, count = x.shape[3], x.shape[2]
        items = problem.batch * (problem.heads // table_heads) * _tiles(count, shape.m)
        parts = parts_of(table_heads, items, x.device)
        sums = x.new_empty(parts, table_heads, 2, width, dtype=torch.float32)
        with torch.cuda.device_of(x):
            launch(
                ends_kernel, parts * table_heads, numbers, rows_of(x), sums, problem.batch,
                problem.heads, repeat, count, parts, table_heads, M=shape.m, WIDTH=width,
                BLOCK=power_of_two(max(width, 16)), S=self._settings(shape, 0), shape=shape,
            )  # fmt: skip
        return sums.sum(0)

    def _mask(self) -> None:
        problem, saved = self.problem, self.saved
        mask = problem.mask
        assert mask is not None
        d_mask = torch.empty(mask.shape, dtype=torch.float32, device=mask.device)
        slabs = len(problem.rows.keys() - {"bias"})

        def run(shape: Shape) -> None:
            settings = self._settings(shape, slabs)
            tiles = mask.shape[0] * mask.shape[1]
            tiles *= _tiles(mask.shape[2], shape.m) * _tiles(mask.shape[3], shape.n)
            programs = program_count(tiles, mask.device, slabs > 0)
            launch(
                mask_kernel, programs, *problem.call(settings, tiles, programs), saved.softmax,
                rows_of(saved.d_out), self.delta, _rows(saved.d_places), d_mask, problem.batch,
                mask.shape[0], mask.shape[1], S=settings, shape=shape,
            )  # fmt: skip

        _fitting("by_key", problem, run)
        self.gradients["mask"] = d_mask


def _rows(x: Tensor | None) -> Any:
    return None if x is None else rows_of(x)
