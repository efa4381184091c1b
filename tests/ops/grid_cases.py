"""Tokens on a grid: one factory for the op's inputs, beside `cases.py` for a line of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from relpos import GridTerms, OffsetTable, Terms, attention, definition, neighborhood_ranges
from tests.ops.agreement import arrays_of, cast
from tests.ops.results import HasResults


@dataclass(frozen=True)
class GridCase(HasResults):
    """Sizes and settings of one call; `inputs` draws its tensors."""

    shape: tuple[int, ...] = (5, 7)
    query_shape: tuple[int, ...] | None = None
    prefix: int = 0
    batch: int = 1
    heads: int = 2
    groups: int = 2
    width: int = 5
    value_width: int = 3
    terms: str = "keys queries bias values"  # of all axes; or of each, between bars
    joint_bias: bool = False
    reach: int | None = None  # offsets of the tables, about -reach..reach; None: all of the grid
    beyond: str = "clamp"
    table_heads: int = 1  # with bars, of the first axis; 1 for the others
    rel_width: int | None = None  # of the first axis; with bars, others have none, else one more
    causal: bool = False
    mask: str | None = None  # "padding", "pairs", "additive"
    documents: bool = False  # tokens belong to one of three documents, or to none
    hide_far: bool = False  # the bias of the first axis is -inf but at one offset
    scale: float | None = None
    window: tuple[tuple[int | None, int | None] | None, ...] | None = None
    ranges: bool = False  # each query sees some keys, or none
    axis_ranges: str | None = None  # along each axis: "any", some of them empty, or "near"
    softcap: float | None = None

    @property
    def queries(self) -> tuple[int, ...]:
        return self.shape if self.query_shape is None else self.query_shape

    def parts(self, axis: int) -> list[str]:
        """The tables of an axis."""
        each = self.terms.split("|")
        return each[axis % len(each)].split()

    def own_width(self, axis: int) -> int | None:
        """The width of an axis's q_rel, None without."""
        if self.rel_width is None or "keys" not in self.parts(axis) or ("|" in self.terms and axis):
            return None
        return self.rel_width + axis

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """Tensors by name: q, k, v, `keys0`, ..., `q_rel1`, joint, mask.

        The same numbers in float32 and float64.
        """
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).double()

        b, h = self.batch, self.heads
        i, j = self.prefix + prod(self.queries), self.prefix + prod(self.shape)
        named = {
            "q": normal(b, h, i, self.width),
            "k": normal(b, self.groups, j, self.width),
            "v": normal(b, self.groups, j, self.value_width),
        }
        for axis in range(len(self.shape)):
            own, heads = self.own_width(axis), 1 if "|" in self.terms and axis else self.table_heads
            widths = {"keys": own or self.width, "queries": self.width, "values": self.value_width}
            for part in self.parts(axis):
                first, last = self.table_offsets(part, axis)
                width = [] if part == "bias" else [widths[part]]
                named[f"{part}{axis}"] = normal(heads, last - first + 1, *width)
            if own is not None:
                named[f"q_rel{axis}"] = normal(b, h, i, own)
        if self.documents:
            named["documents"] = torch.randint(-1, 3, (b, j), generator=draw)
        if self.ranges:
            first = torch.randint(-2, j, (b, i), generator=draw)
            count = torch.randint(-2, j, (b, i), generator=draw)
            named["key_ranges"] = torch.stack([first, first + count], -1)
        named |= self._axis_ranges(draw)
        if self.hide_far:
            named["bias0"] = torch.full_like(named["bias0"], -torch.inf)
            named["bias0"][:, 0] = 0
        if self.joint_bias:
            named["joint_bias"] = normal(self.table_heads, *(2 * n - 1 for n in self.shape))
        if self.mask == "padding":
            named["mask"] = torch.rand(b, 1, 1, j, generator=draw) > 0.3
            named["mask"][0, :, :, : j // 2] = False
        elif self.mask == "pairs":
            named["mask"] = torch.rand(1, h, i, j, generator=draw) > 0.4
            named["mask"][:, :, 0] = False  # a row without any key
        elif self.mask == "additive":
            named["mask"] = normal(b, h, i, j)
        return cast(named, dtype)

    def _axis_ranges(self, draw: torch.Generator) -> dict[str, Tensor]:
        found = {}
        for axis, (n, size) in enumerate(zip(self.queries, self.shape, strict=True)):
            if self.axis_ranges == "near":
                found[f"axis_ranges{axis}"] = neighborhood_ranges(n, 3 + 2 * axis)
            elif self.axis_ranges == "any":
                entries = 1 if axis else self.batch
                first = torch.randint(-2, size, (entries, n), generator=draw)
                count = torch.randint(-1, size + 1, (entries, n), generator=draw)
                found[f"axis_ranges{axis}"] = torch.stack([first, first + count], -1)
        return found

    def table_offsets(self, part: str, axis: int) -> tuple[int, int]:
        """First and last offset: never the same for two tables, nor on two axes."""
        reach = max(self.shape[axis], self.queries[axis]) - 1 if self.reach is None else self.reach
        more = 0 if self.reach is None else axis
        moved = {"keys": 0, "queries": 1, "bias": -1, "values": 0}[part] * (self.reach is not None)
        return moved - reach, moved + reach + more

    def key_ranges_of(self, named: dict[str, Any]) -> Any:
        """`key_ranges` of queries, or of axes; of three the second has none."""
        if self.axis_ranges is None:
            return named.get("key_ranges")
        axes = range(len(self.shape))
        return [
            None if len(self.shape) == 3 and axis == 1 else named[f"axis_ranges{axis}"]
            for axis in axes
        ]

    def terms_of(self, named: dict[str, Tensor]) -> GridTerms:
        axes = []
        for axis in range(len(self.shape)):
            tables = {
                part: OffsetTable(
                    named[f"{part}{axis}"],
                    self.table_offsets(part, axis)[0],
                    self.beyond,  # type: ignore[arg-type]
                )
                for part in self.parts(axis)
            }
            axes.append(Terms(**tables, q_rel=named.get(f"q_rel{axis}")))
        return GridTerms(
            self.shape,
            tuple(axes),
            joint_bias=named.get("joint_bias"),
            query_shape=self.query_shape,
            prefix=self.prefix,
        )

    def run(
        self,
        named: dict[str, Tensor],
        backend: str,
        attend: Callable[..., Any] = attention,
        **changes,
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a backend."""
        settings = {
            "causal": self.causal, "mask": named.get("mask"), "scale": self.scale,
            "documents": named.get("documents"), "window": self.window,
            "key_ranges": self.key_ranges_of(named), "softcap": self.softcap,
        }  # fmt: skip
        return attend(
            named["q"], named["k"], named["v"], self.terms_of(named), backend=backend,
            return_lse=True, **settings | changes,
        )  # fmt: skip

    def define(self, named: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp by the NumPy double loop, in float64."""
        arrays = arrays_of(named)
        axes = [
            definition.Axis(
                **{
                    part: definition.Table(
                        arrays[f"{part}{axis}"],
                        self.table_offsets(part, axis)[0],
                        self.beyond,  # type: ignore[arg-type]
                    )
                    for part in self.parts(axis)
                },
                q_rel=arrays.get(f"q_rel{axis}"),
            )
            for axis in range(len(self.shape))
        ]
        if self.documents:
            arrays["mask"] = within_documents(named["documents"], named.get("mask"))
        output, lse = definition.grid_attention(
            arrays["q"], arrays["k"], arrays["v"], shape=self.shape, axes=axes,
            joint_bias=arrays.get("joint_bias"), query_shape=self.query_shape, prefix=self.prefix,
            causal=self.causal, mask=arrays.get("mask"), scale=self.scale, window=self.window,
            key_ranges=self.key_ranges_of(arrays), softcap=self.softcap,
        )  # fmt: skip
        return torch.from_numpy(output), torch.from_numpy(lse)


BASE = GridCase()
# So many batch entries that the compiled kernel lays the joint bias out by pair.
WINDOWS = GridCase(
    shape=(3, 5),
    batch=16,
    heads=4,
    groups=4,
    width=16,
    value_width=16,
    terms="",
    joint_bias=True,
    table_heads=4,
)


def within_documents(documents: Tensor, mask: Tensor | None) -> np.ndarray:
    """What the definition, which knows masks alone, makes of documents: `(b, 1, i, j)`, i = j."""
    of = documents.numpy()
    together = ((of[:, :, None] == of[:, None, :]) & (of[:, None, :] >= 0))[:, None]
    if mask is None:
        return together
    if mask.dtype == torch.bool:
        return together & mask.numpy()
    return np.where(together, mask.detach().numpy(), -np.inf)


GRID_CASES = {
    "plane": BASE,
    "plane, keys": replace(BASE, terms="keys"),
    "plane, per head": replace(BASE, table_heads=2),
    "plane, no tables": replace(BASE, terms=""),
    "axes that differ": replace(
        BASE,
        shape=(3, 2, 3),
        terms="keys values|keys bias queries|",
        table_heads=2,
        rel_width=4,
        prefix=1,
    ),
    "axes that differ, pooled": replace(
        BASE,
        shape=(6, 4),
        query_shape=(3, 4),
        terms="bias|keys values",
        table_heads=2,
    ),
    "one row": replace(BASE, shape=(1, 9)),
    "one column": replace(BASE, shape=(9, 1)),
    "one token": replace(BASE, shape=(1, 1)),
    "line": replace(BASE, shape=(9,)),
    "line, prefix": replace(BASE, shape=(9,), prefix=2, reach=3),
    "line, joint": replace(BASE, shape=(9,), joint_bias=True),
    "line, pooled": replace(BASE, shape=(9,), query_shape=(4,)),
    "space": replace(BASE, shape=(3, 4, 5), heads=1, groups=1),
    "space, prefix, joint": replace(BASE, shape=(2, 3, 4), prefix=1, joint_bias=True),
    "space, pooled": replace(BASE, shape=(3, 4, 5), query_shape=(1, 2, 2), prefix=1),
    "prefix": replace(BASE, prefix=1),
    "two before": replace(BASE, prefix=2, table_heads=2, batch=2),
    "pooled": replace(BASE, shape=(4, 6), query_shape=(2, 3)),
    "pooled, between rows": replace(BASE, shape=(5, 7), query_shape=(3, 4), prefix=1),
    "pooled, zero beyond": replace(
        BASE, shape=(5, 7), query_shape=(3, 4), reach=2, beyond="zero", table_heads=2
    ),
    "pooled keys": replace(BASE, shape=(3, 2), query_shape=(6, 5), prefix=1),
    "finer on one axis each": replace(BASE, shape=(6, 2), query_shape=(4, 5)),
    "joint_bias": replace(BASE, terms="", joint_bias=True, table_heads=2),
    "joint beside tables": replace(BASE, joint_bias=True, prefix=1),
    "windows": WINDOWS,
    "windows, grouped": replace(WINDOWS, groups=2, causal=True),
    "windows, all terms": replace(
        WINDOWS,
        shape=(4, 3),
        prefix=2,
        terms=BASE.terms,
        table_heads=1,
        mask="additive",
        window=((2, 1), None),
    ),
    "clamped": replace(BASE, reach=2, table_heads=2),
    "zero beyond": replace(BASE, reach=1, beyond="zero"),
    "q_rel": replace(BASE, terms="keys", rel_width=3, prefix=1),
    "q_rel, per head": replace(BASE, terms="keys bias", rel_width=2, table_heads=2),
    "q_rel, pooled": replace(BASE, terms="keys", rel_width=3, query_shape=(3, 4)),
    "grouped": replace(BASE, shape=(3, 4), heads=6, groups=2, table_heads=6, joint_bias=True),
    "padding": replace(BASE, batch=2, mask="padding", prefix=1),
    "pairs": replace(BASE, mask="pairs"),
    "additive": replace(BASE, mask="additive", prefix=1, joint_bias=True),
    "causal": replace(BASE, causal=True, prefix=1),
    "scale": replace(BASE, scale=0.7, joint_bias=True),
    "documents": replace(BASE, documents=True, prefix=1, joint_bias=True),
    "documents and a mask": replace(BASE, documents=True, mask="padding", batch=2, causal=True),
    "rows hidden by a bias": replace(BASE, terms="keys bias", hide_far=True),
    "window": replace(BASE, window=((1, 2), (3, 1)), prefix=1),
    "window of one axis": replace(BASE, window=(None, (2, None)), joint_bias=True, table_heads=2),
    "window, space": replace(BASE, shape=(3, 4, 5), window=((1, 0), None, (2, 1)), causal=True),
    "window and ranges": replace(BASE, window=((2, 2), (2, 2)), ranges=True, batch=2),
    "axis ranges": replace(BASE, axis_ranges="any", batch=2),
    "axis ranges, prefix": replace(
        BASE, axis_ranges="any", batch=2, prefix=2, joint_bias=True, mask="padding"
    ),
    "axis ranges, pooled": replace(
        BASE, axis_ranges="any", query_shape=(3, 9), prefix=1, batch=2, terms="keys values"
    ),
    "axis ranges and windows": replace(
        BASE, shape=(3, 4, 5), axis_ranges="any", window=((1, 0), None, (2, 1)), causal=True
    ),
    "axis ranges of a line": replace(BASE, shape=(9,), axis_ranges="any"),
    "neighborhoods": replace(
        BASE, shape=(6, 8), axis_ranges="near", terms="", joint_bias=True, softcap=2.0
    ),
    "windows, neighborhoods": replace(
        WINDOWS, shape=(4, 6), axis_ranges="near", terms="bias", mask="additive"
    ),
    "ranges, pooled": replace(BASE, query_shape=(3, 4), ranges=True, prefix=1),
    "softcap": replace(BASE, softcap=1.0, joint_bias=True, mask="additive", prefix=1),
    # A row of the grid fills a tile of keys in triton, or most of it:
    "long rows": replace(BASE, shape=(4, 12), terms="keys", table_heads=2),
    "long rows, prefix": replace(
        BASE, shape=(3, 16), prefix=2, terms="keys bias", batch=2, mask="padding"
    ),
    "long rows, long prefix, pooled": replace(
        BASE, shape=(3, 11), query_shape=(6, 5), prefix=20, terms="keys"
    ),
    "long rows, values, grouped": replace(
        BASE, shape=(4, 12), terms="keys values", prefix=1, heads=4, groups=2
    ),
    "long rows, some hidden": replace(
        BASE, shape=(5, 9), terms="keys bias", mask="pairs", hide_far=True
    ),
    # More tokens than one block of rows has:
    "rows, window": replace(
        BASE, shape=(23, 17), window=((2, 1), (3, 4)), joint_bias=True, table_heads=2
    ),
    "rows, window, prefix": replace(BASE, shape=(23, 17), prefix=2, window=((1, 1), (3, 3))),
    "rows, neighborhoods": replace(
        BASE, shape=(23, 17), axis_ranges="near", joint_bias=True, table_heads=2
    ),
    "rows, axis ranges, prefix": replace(
        BASE, shape=(13, 17), prefix=2, axis_ranges="any", batch=2, groups=1
    ),
    "rows": replace(BASE, shape=(13, 17), prefix=1, joint_bias=True, table_heads=2),
    "rows, causal": replace(BASE, shape=(13, 17), prefix=1, causal=True, joint_bias=True),
    "rows, long prefix": replace(BASE, shape=(3, 7), prefix=150, joint_bias=True),
    "rows, pooled": replace(BASE, shape=(9, 17), query_shape=(18, 9), prefix=1),
}


@st.composite
def any_grid(draw) -> GridCase:
    axes = draw(st.integers(1, 3))
    most = {1: 12, 2: 5, 3: 3}[axes]
    shape = tuple(draw(st.integers(1, most)) for _ in range(axes))
    queries = st.tuples(*[st.integers(1, most)] * axes)
    query_shape = draw(st.none() | queries)
    groups, repeat = draw(st.sampled_from([(1, 1), (1, 3), (2, 1)]))
    heads = groups * repeat
    windows = st.sampled_from([None, (1, 0), (0, 2), (None, 1), (2, None)])
    ranges = draw(st.sampled_from([None, "queries", "axes"]))
    parts = draw(st.sets(st.sampled_from(["keys", "queries", "bias", "values"])))
    return GridCase(
        shape=shape,
        query_shape=query_shape,
        prefix=draw(st.integers(0, 2)),
        batch=draw(st.integers(1, 2)),
        heads=heads,
        groups=groups,
        width=draw(st.sampled_from([1, 4])),
        terms=" ".join(sorted(parts)),
        joint_bias=query_shape in (None, shape) and draw(st.booleans()),
        reach=draw(st.sampled_from([None, 1, 4])),
        beyond=draw(st.sampled_from(["clamp", "zero"])),
        table_heads=draw(st.sampled_from([1, heads])),
        rel_width=draw(st.sampled_from([None, 2])) if "keys" in parts else None,
        causal=query_shape in (None, shape) and draw(st.booleans()),
        mask=draw(st.sampled_from([None, "padding", "pairs", "additive"])),
        documents=query_shape in (None, shape) and draw(st.booleans()),
        scale=draw(st.sampled_from([None, 0.3])),
        window=draw(st.none() | st.tuples(*[windows] * axes)) if query_shape is None else None,
        ranges=ranges == "queries",
        axis_ranges="any" if ranges == "axes" else None,
        softcap=draw(st.sampled_from([None, None, 0.8, 20.0])),
    )
