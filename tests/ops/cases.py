"""One factory for the op's inputs, for a line of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from relpos import OffsetTable, Terms, attention, definition
from tests.ops.agreement import arrays_of, cast
from tests.ops.results import HasResults


@dataclass(frozen=True)
class Case(HasResults):
    """Sizes and settings of one call; `inputs` draws its tensors."""

    batch: int = 2
    heads: int = 2
    groups: int = 2
    queries: int = 33
    keys: int = 33
    width: int = 6
    value_width: int = 10
    terms: str = "keys queries bias values"
    table_window: tuple[int, int] = (3, 4)  # offsets -left..right
    beyond: str = "clamp"
    table_heads: int = 1
    rel_width: int | None = None
    causal: bool = False
    mask: str | None = None  # "padding", "pairs", "additive", "additive, hiding", "column"
    query_start: int | None = None
    scale: float | None = None
    documents: str | None = None  # "runs", "runs, padded", "mixed"
    hide_far: bool = False  # the bias is -inf at and beyond its ends: a local window
    window: tuple[int | None, int | None] | None = None
    ranges: str | None = None  # "chunks", "any", "any of each", some of them empty
    softcap: float | None = None

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """Tensors by name: q, k, v, the tables, q_rel and mask, where the case has them.

        The same numbers in float32 and float64.
        """
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw).double()

        b, h, g, i, j = self.batch, self.heads, self.groups, self.queries, self.keys
        named = {
            "q": normal(b, h, i, self.width),
            "k": normal(b, g, j, self.width),
            "v": normal(b, g, j, self.value_width),
        }
        rows, heads = sum(self.table_window) + 1, self.table_heads
        rel = self.width if self.rel_width is None else self.rel_width
        shapes = {
            "keys": (heads, rows, rel),
            "queries": (heads, rows + 1, self.width),
            "bias": (heads, rows + 2),
            "values": (heads, rows, self.value_width),
        }
        named |= {name: normal(*shapes[name]) for name in self.terms.split()}
        if self.hide_far:
            named["bias"][:, [0, -1]] = -torch.inf
        if self.documents is not None:
            named["documents"] = self._documents(draw)
        if self.ranges is not None:
            named["key_ranges"] = self._ranges(draw)
        if self.rel_width is not None:
            named["q_rel"] = normal(b, h, i, self.rel_width)
        if self.mask == "padding":
            named["mask"] = torch.rand(b, 1, 1, j, generator=draw) > 0.3
            named["mask"][0] = False  # one piece of the batch has no key at all
        elif self.mask == "pairs":
            named["mask"] = torch.rand(1, h, i, j, generator=draw) > 0.4
        elif self.mask == "additive":
            named["mask"] = normal(b, h, i, j)
        elif self.mask == "additive, hiding":
            hidden = torch.rand(b, 1, i, j, generator=draw) > 0.5
            hidden[0, :, 0] = True  # a row without any key
            named["mask"] = normal(b, 1, i, j).masked_fill(hidden, -torch.inf)
        elif self.mask == "column":
            named["mask"] = normal(1, h, i, 1)
        return cast(named, dtype)

    def _documents(self, draw: torch.Generator) -> Tensor:
        """The document of each position: runs of some length, or any number for each."""
        at = torch.randint(0, 3, (self.batch, self.keys), generator=draw)
        if self.documents != "mixed":
            at = (at == 0).long().cumsum(1)
        return at.masked_fill(at == 2, -1) if self.documents == "runs, padded" else at

    def _ranges(self, draw: torch.Generator) -> Tensor:
        """Chunks with one before them, or the keys from any one on to any other."""
        i, j = self.queries, self.keys
        if self.ranges == "chunks":
            size = max(j // 5, 1)
            first = torch.arange(i) * j // max(i, 1) // size * size
            return torch.stack([first - size, first + size], -1).unsqueeze(0)
        batch = self.batch if self.ranges == "any of each" else 1
        first = torch.randint(-3, j + 2, (batch, i), generator=draw)
        return torch.stack([first, first + torch.randint(-2, j, (batch, i), generator=draw)], -1)

    def tables(self, named: dict[str, Tensor]) -> dict[str, OffsetTable]:
        """The tables among `named`; each starts at another offset, so that none hides another."""
        firsts = {"keys": 0, "queries": 1, "bias": -1, "values": 0}
        return {
            name: OffsetTable(named[name], firsts[name] - self.table_window[0], self.beyond)  # type: ignore[arg-type]
            for name in self.terms.split()
        }

    def run(
        self,
        named: dict[str, Tensor],
        backend: str,
        attend: Callable[..., Any] = attention,
        **changes,
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a backend, or of another function called as `attention`."""
        return attend(
            named["q"],
            named["k"],
            named["v"],
            Terms(**self.tables(named), q_rel=named.get("q_rel")),
            **{
                "causal": self.causal,
                "mask": named.get("mask"),
                "documents": named.get("documents"),
                "query_start": self.query_start,
                "scale": self.scale,
                "window": self.window,
                "key_ranges": named.get("key_ranges"),
                "softcap": self.softcap,
                "backend": backend,
                "return_lse": True,
                **changes,
            },
        )

    def define(self, named: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp by the NumPy double loop, in float64."""
        arrays = arrays_of(named)
        tables = {
            name: definition.Table(arrays[name], table.first, table.beyond)
            for name, table in self.tables(named).items()
        }
        if self.documents is not None:
            # The definition knows masks alone: this one is literal.
            start = self.keys - self.queries if self.query_start is None else self.query_start
            of = arrays["documents"]
            of_queries = of[:, start : start + self.queries]
            together = (of_queries[:, :, None] == of[:, None, :]) & (of[:, None, :] >= 0)
            hidden, mask = ~together[:, None], arrays.get("mask", np.bool_(True))
            arrays["mask"] = mask & ~hidden if mask.dtype == bool else np.where(
                hidden, -np.inf, mask
            )  # fmt: skip
        output, lse = definition.attention(
            arrays["q"],
            arrays["k"],
            arrays["v"],
            **tables,
            q_rel=arrays.get("q_rel"),
            mask=arrays.get("mask"),
            causal=self.causal,
            query_start=self.query_start,
            scale=self.scale,
            window=self.window,
            key_ranges=arrays.get("key_ranges"),
            softcap=self.softcap,
        )
        return torch.from_numpy(output), torch.from_numpy(lse)


BASE = Case()
WIDE = (64, 64)  # a window that no pair of a short sequence leaves

CASES = {
    "plain": replace(BASE, terms=""),
    "one token": replace(BASE, queries=1, keys=1),
    "one query": replace(BASE, queries=1, keys=65, causal=True),
    "keys": replace(BASE, terms="keys"),
    "bias": replace(BASE, terms="bias", table_heads=2),
    "values": replace(BASE, terms="values"),
    "per head": replace(BASE, table_heads=2),
    "zero beyond": replace(BASE, beyond="zero", table_heads=2),
    "zero beyond, one row": replace(BASE, beyond="zero", table_window=(0, 0)),
    "all offsets": replace(BASE, table_window=WIDE),
    "all offsets, causal": replace(BASE, table_window=WIDE, causal=True),
    "only the past": replace(BASE, table_window=(64, 0), causal=True),
    "window ahead of all": replace(BASE, table_window=(-40, 44), terms="keys values"),
    "window behind all": replace(BASE, table_window=(44, -40), terms="keys values"),
    "causal": replace(BASE, causal=True, terms="keys values"),
    "fewer queries": replace(BASE, queries=33, keys=65, causal=True),
    "more queries than keys": replace(BASE, queries=65, keys=33, causal=True),
    "several row blocks": replace(BASE, batch=1, queries=300, keys=300, table_window=(20, 30)),
    "several row blocks, causal": replace(
        BASE, batch=1, queries=290, keys=310, table_window=(20, 0), causal=True
    ),
    "queries start early": replace(BASE, query_start=-7, causal=True),
    "queries start late": replace(BASE, query_start=50),
    "grouped": replace(BASE, heads=6, groups=2),
    "grouped, per head": replace(BASE, heads=6, groups=2, table_heads=6, causal=True),
    "one key head": replace(BASE, heads=3, groups=1, rel_width=4),
    "q_rel": replace(BASE, rel_width=5, terms="keys"),
    "q_rel, zero beyond, causal": replace(
        BASE, rel_width=5, terms="keys", beyond="zero", table_window=(7, 0), causal=True
    ),
    "padding": replace(BASE, mask="padding"),
    "pairs": replace(BASE, mask="pairs", causal=True),
    "additive": replace(BASE, mask="additive", table_heads=2),
    "additive column": replace(BASE, mask="column", heads=4, groups=2),
    "additive, hiding": replace(BASE, mask="additive, hiding", causal=True),
    "window by a bias": replace(
        BASE, hide_far=True, terms="keys bias", query_start=20, beyond="clamp"
    ),
    "scale": replace(BASE, scale=0.7, rel_width=3),
    "queries": replace(BASE, terms="queries"),
    "queries per head": replace(BASE, terms="queries", table_heads=2, causal=True),
    "queries, all offsets": replace(BASE, terms="queries", table_window=WIDE, queries=65, keys=65),
    "queries, several row blocks": replace(
        BASE, batch=1, terms="queries", queries=300, keys=310, table_window=(20, 30), table_heads=2
    ),
    "queries, grouped, causal": replace(
        BASE, heads=6, groups=2, terms="keys queries", queries=150, keys=170, causal=True
    ),
    "queries, grouped, per head": replace(
        BASE, heads=6, groups=2, table_heads=6, terms="queries", beyond="zero"
    ),
    "documents": replace(BASE, documents="runs"),
    "documents, causal": replace(BASE, documents="runs", causal=True, table_window=(70, 70)),
    "documents and padding": replace(BASE, documents="runs, padded", queries=20, keys=65),
    "documents, mixed": replace(BASE, documents="mixed", causal=True, queries=65, keys=65),
    "documents and a mask": replace(BASE, documents="runs, padded", mask="additive"),
    "documents, padded queries": replace(
        BASE, documents="runs, padded", queries=65, keys=65, mask="pairs", causal=True
    ),
    "one query of queries": replace(BASE, queries=1, keys=65, causal=True, table_heads=2),
    "few queries, grouped": replace(
        BASE, queries=5, keys=65, heads=6, groups=2, table_heads=6, terms="keys queries"
    ),
    "few queries, grouped, shared": replace(
        BASE, queries=5, keys=65, heads=6, groups=2, terms="queries", causal=True, query_start=20
    ),
    "window": replace(BASE, window=(5, 3)),
    "window, causal": replace(BASE, window=(7, None), causal=True, queries=33, keys=65),
    "window of what comes": replace(BASE, window=(None, 0), table_heads=2, query_start=-7),
    "window of the token": replace(BASE, window=(0, 0), terms="keys values", queries=20, keys=65),
    "window, several row blocks": replace(
        BASE, batch=1, queries=300, keys=700, window=(70, 20), table_window=(40, 10)
    ),
    "window beside documents": replace(BASE, window=(9, 9), documents="runs, padded", causal=True),
    "window, one query": replace(BASE, window=(30, 0), queries=1, keys=65),
    "ranges": replace(BASE, ranges="any of each", queries=33, keys=65),
    "ranges, chunks": replace(BASE, ranges="chunks", causal=True, table_heads=2),
    "ranges, several row blocks": replace(
        BASE, batch=1, queries=300, keys=700, ranges="any", table_window=(40, 10)
    ),
    "ranges and a mask": replace(BASE, ranges="any", mask="additive, hiding", window=(20, 20)),
    "softcap": replace(BASE, softcap=1.5, mask="additive"),
    "softcap, causal": replace(BASE, softcap=30.0, causal=True, heads=6, groups=2, window=(9, 0)),
    "softcap of a bias": replace(BASE, softcap=2.0, hide_far=True, terms="keys bias", mask="pairs"),
    "documents, several row blocks": replace(
        BASE, documents="runs, padded", causal=True, queries=300, keys=310, batch=2
    ),
}


MASKS = (None, "padding", "pairs", "additive", "additive, hiding", "column")


@st.composite
def any_case(draw, longest: int = 24) -> Case:
    """Any sizes and settings; with many tokens, windows may be long too."""
    groups, repeat = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    heads = groups * repeat
    reach = max(40, longest)
    left = draw(st.integers(-3, reach))
    documents = draw(st.sampled_from([None, None, "runs", "runs, padded", "mixed"]))
    keys = draw(st.integers(1, longest))
    queries = draw(st.integers(1, longest if documents is None else keys))
    terms = sorted(draw(st.sets(st.sampled_from(["keys", "queries", "bias", "values"]))))
    return Case(
        batch=draw(st.integers(1, 2)),
        heads=heads,
        groups=groups,
        queries=queries,
        keys=keys,
        documents=documents,
        width=draw(st.sampled_from([1, 3, 8])),
        value_width=draw(st.sampled_from([1, 5])),
        terms=" ".join(terms),
        rel_width=draw(st.sampled_from([None, 2])) if "keys" in terms else None,
        table_window=(left, draw(st.integers(-left, reach))),
        beyond=draw(st.sampled_from(["clamp", "zero"])),
        table_heads=draw(st.sampled_from([1, heads])),
        causal=draw(st.booleans()),
        mask=draw(st.sampled_from(MASKS)),
        query_start=draw(st.sampled_from([None, -5, 0, 9])) if documents is None else None,
        scale=draw(st.sampled_from([None, 0.3])),
        window=draw(st.sampled_from([None, None, (3, 5), (None, 2), (longest // 3, 0)])),
        ranges=draw(st.sampled_from([None, None, "chunks", "any", "any of each"])),
        softcap=draw(st.sampled_from([None, None, 0.8, 20.0])),
    )
