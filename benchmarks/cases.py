"""What is compared: each scheme's terms at a scene's sizes, and what others run in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import rivals
from relpos import GridTerms, OffsetTable, Terms, attention
from relpos.positions import Alibi
from scenes import LOGITS, Scene

__all__ = [
    "NATIVE",
    "SCHEMES",
    "TRITON",
    "UNIT",
    "Case",
    "Run",
    "contenders",
    "exact",
    "inputs",
    "make_case",
]

Run = Callable[[Tensor, Tensor, Tensor], Tensor]
UNIT = "plain SDPA"
NATIVE = "relpos native"
TRITON = "relpos triton"
_MOST_SCORES = 2**26  # that are held in float64 at once


@dataclass(frozen=True)
class Case:
    """One scheme at one size.

    Args:
        terms: from the queries and keys, in their dtype.
        tables: the leaves that are learned.
        causal: whether keys ahead are left out.
        documents: as in `relpos.attention`.
        mask: as in `relpos.attention`.
        dropout: as in `relpos.attention`.
        others: rivals by name.
    """

    terms: Callable[[Tensor, Tensor], Terms | GridTerms]
    tables: tuple[Tensor, ...] = ()
    causal: bool = False
    documents: Tensor | None = None
    mask: Tensor | None = None
    dropout: float = 0.0
    others: dict[str, Run] = field(default_factory=dict)

    def settings(self, q: Tensor, k: Tensor) -> dict[str, Any]:
        """Arguments of `relpos.attention`. Queries that are fewer than the keys are decoded."""
        return {
            "causal": self.causal or q.shape[2] < k.shape[2],
            "documents": self.documents,
            "mask": self.mask,
            "dropout": self.dropout,
        }


Draw = Callable[..., Tensor]  # a learned table of that shape


def _learned(
    make: Callable[..., Terms | GridTerms], *tables: Tensor, causal: bool = False, **others: Run
) -> Case:
    """The case of tables that are cast to the queries' dtype; `_` in a rival's name is a space."""
    return Case(
        lambda q, _: make(*(table.to(q.dtype) for table in tables)),
        tables,
        causal,
        others={name.replace("_", " "): run for name, run in others.items()},
    )


def _with(function: Callable[..., Tensor], *tables: Tensor) -> Run:
    """A rival that takes tables without an axis for heads, in the queries' dtype."""
    return lambda q, k, v: function(q, k, v, *(table[0].to(q.dtype) for table in tables))


def _with_scalars(function: Callable[..., Tensor], table: Tensor) -> Run:
    """A rival that takes a bias for each head, in the queries' dtype."""
    return lambda q, k, v: function(q, k, v, table.to(q.dtype))


def _on_gpu(scene: Scene, **others: Run) -> dict[str, Any]:
    """Rivals that run on a GPU alone."""
    return others if scene.device == "cuda" else {}


def _shaw_keys(scene: Scene, draw: Draw) -> Case:
    rows = draw(1, 129, scene.width)
    return _learned(
        lambda rows: Terms(keys=OffsetTable(rows, -64)), rows,
        FlexAttention=_with(rivals.flex(), rows),
        **_on_gpu(scene, SDPA_with_a_dense_bias=_with(rivals.clipped_dense_bias, rows)),
    )  # fmt: skip


def _shaw(scene: Scene, draw: Draw) -> Case:
    tables = draw(1, 129, scene.width), draw(1, 129, scene.width)
    return _learned(
        lambda keys, values: Terms(keys=OffsetTable(keys, -64), values=OffsetTable(values, -64)),
        *tables, literal_Shaw=_with(rivals.literal_shaw, *tables),
    )  # fmt: skip


def _shaw_values(scene: Scene, draw: Draw) -> Case:
    rows = draw(1, 129, scene.width)
    return _learned(lambda rows: Terms(values=OffsetTable(rows, -64)), rows)


def _queries(scene: Scene, draw: Draw) -> Case:
    rows = draw(1, 129, scene.width)
    return _learned(
        lambda rows: Terms(queries=OffsetTable(rows, -64)), rows,
        gathered=_with(rivals.gathered_queries, rows),
    )  # fmt: skip


def _clipped_bias(scene: Scene, draw: Draw) -> Case:
    rows = draw(scene.heads, 257)
    others = _on_gpu(
        scene,
        FlexAttention=_with_scalars(rivals.flex_scalars(), rows),
        SDPA_with_a_dense_bias=_with_scalars(rivals.dense_scalars, rows),
    )
    return _learned(lambda rows: Terms(bias=OffsetTable(rows, -128)), rows, **others)


def _alibi(scene: Scene, draw: Draw) -> Case:
    position = Alibi(scene.heads).to(scene.device)
    return Case(lambda q, k: position(q, k)[2])


def _huang(scene: Scene, draw: Draw) -> Case:
    rows, first = draw(1, scene.length, scene.width), 1 - scene.length
    flex = rivals.flex(first=first, causal=True)
    return _learned(
        lambda rows: Terms(keys=OffsetTable(rows, first)), rows, causal=True,
        eager_skew=_with(rivals.eager_skew, rows),
        **_on_gpu(scene, FlexAttention=_with(flex, rows)),
    )  # fmt: skip


def _bidirectional(scene: Scene, draw: Draw) -> Case:
    rows = draw(1, 2 * scene.length - 1, scene.width)
    return _learned(
        lambda rows: Terms(keys=OffsetTable(rows, 1 - scene.length)), rows,
        pad_and_reshape=_with(rivals.pad_and_reshape, rows),
        SDPA_with_a_dense_bias=_with(rivals.dense_bias, rows),
        FlexAttention=_with(rivals.flex(), rows),
    )  # fmt: skip


def _global_queries(scene: Scene, draw: Draw) -> Case:
    rows = draw(1, 2 * scene.length - 1, scene.width)
    return _learned(
        lambda rows: Terms(queries=OffsetTable(rows, 1 - scene.length)), rows,
        gathered=_with(rivals.gathered_queries, rows),
    )  # fmt: skip


def _logits(scene: Scene, draw: Draw) -> Case:
    def unit(*shape: int) -> Tensor:
        return (draw(*shape) * scene.width**0.5).detach()

    rows = unit(1, 1024, 16).requires_grad_()
    # As a layer hands them on: in the dtype of the queries.
    q_rel = unit(scene.batch, scene.heads, scene.queries, 16)
    q_rel = q_rel.to(scene.torch_dtype).requires_grad_()
    flex = rivals.flex(first=-1023, causal=True, beyond="zero")
    return Case(
        lambda q, _: Terms(keys=OffsetTable(rows.to(q.dtype), -1023, "zero"), q_rel=q_rel),
        (rows, q_rel),
        causal=True,
        others=_on_gpu(
            scene, FlexAttention=lambda q, k, v: flex(q, k, v, rows[0].to(q.dtype), q_rel)
        ),
    )


def _grid(scene: Scene, draw: Draw) -> Case:
    shape = scene.map_shape
    axes = tuple(draw(1, 2 * size - 1, scene.width) for size in shape)

    def terms(*tables: Tensor) -> GridTerms:
        each = zip(tables, shape, strict=True)
        return GridTerms(shape, tuple(Terms(keys=OffsetTable(some, 1 - n)) for some, n in each))

    return _learned(terms, *axes, SDPA_with_a_dense_bias=_with(rivals.decomposed_bias, *axes))


def _joint(scene: Scene, draw: Draw) -> Case:
    shape = scene.map_shape
    joint_bias = draw(scene.heads, *(2 * size - 1 for size in shape))
    return _learned(lambda joint_bias: GridTerms(shape, joint_bias=joint_bias), joint_bias)


def _documents(scene: Scene, draw: Draw) -> Case:
    rows = draw(scene.heads, 257)
    documents = torch.arange(scene.length, device=scene.device)[None] // max(1, scene.length // 8)
    return Case(
        lambda q, _: Terms(bias=OffsetTable(rows.to(q.dtype), -128)),
        (rows,),
        documents=documents,
        others={
            "SDPA with a dense mask": lambda q, k, v: rivals.masked_documents(
                q, k, v, rows.to(q.dtype), documents
            )
        },
    )


def _nothing(scene: Scene, draw: Draw) -> Case:
    return Case(lambda q, k: Terms())


def _dropout(scene: Scene, draw: Draw) -> Case:
    return replace(_shaw_keys(scene, draw), dropout=0.1, others={})


def _additive_mask(scene: Scene, draw: Draw) -> Case:
    mask = draw(1, 1, scene.queries, scene.length).detach()
    return Case(lambda q, k: Terms(), mask=mask.to(scene.torch_dtype))


def _boolean_mask(scene: Scene, draw: Draw) -> Case:
    mask = draw(1, 1, scene.queries, scene.length).detach() > 0
    return replace(_shaw_keys(scene, draw), mask=mask, others={})


SCHEMES: dict[str, Callable[[Scene, Draw], Case]] = {
    "Shaw keys, k=64": _shaw_keys,
    "Shaw keys + values, k=64": _shaw,
    "Shaw values, k=64": _shaw_values,
    "queries, k=64 (DeBERTa)": _queries,
    "bias, k=128 (T5)": _clipped_bias,
    "bias, all offsets (ALiBi)": _alibi,
    "Huang, global, causal": _huang,
    "bidirectional, global": _bidirectional,
    "queries, global": _global_queries,
    LOGITS: _logits,
    "grid, per axis (SAM)": _grid,
    "grid, joint bias (Swin)": _joint,
    "8 packed documents, bias": _documents,
    "no terms": _nothing,
    "Shaw keys, dropout": _dropout,
    "Shaw keys, boolean mask": _boolean_mask,
    "additive mask": _additive_mask,
}


def make_case(name: str, scene: Scene) -> Case:
    """The scheme of that name at a scene's sizes; the same numbers each time."""
    device = scene.device
    generator = torch.Generator(device).manual_seed(1)

    def draw(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, device=device)
        return (drawn / scene.width**0.5).requires_grad_()

    return SCHEMES[name](scene, draw)


def inputs(scene: Scene) -> list[Tensor]:
    """Queries, keys and values; the same numbers each time."""
    device = scene.device
    generator = torch.Generator(device).manual_seed(0)
    width = scene.width
    return [
        torch.randn(scene.batch, scene.heads, length, width, generator=generator, device=device)
        .to(scene.torch_dtype)
        .requires_grad_()
        for length in (scene.queries, scene.length, scene.length)
    ]


def contenders(scene: Scene, case: Case) -> dict[str, Run]:
    """What runs in a scene, by name: the unit, ours, then the rivals."""
    square = scene.queries == scene.length  # one query that sees everything needs no mask

    def ours(backend: str) -> Run:
        return lambda q, k, v: attention(
            q, k, v, case.terms(q, k), backend=backend, **case.settings(q, k)
        )

    runs: dict[str, Run] = {
        UNIT: lambda q, k, v: rivals.plain(q, k, v, causal=case.causal and square)
    }
    runs |= {f"relpos {backend}": ours(backend) for backend in scene.backends}
    return runs | (case.others if scene.rivals else {})


def exact(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The result in float64, of as many sequences and heads (the first ones) as fit in memory."""
    batch, heads = q.shape[:2]
    most = max(1, _MOST_SCORES // (q.shape[2] * k.shape[2]))
    batch, heads = min(batch, max(1, most // heads)), min(heads, most)

    def first(x: Tensor) -> Tensor:  # q_rel alone has four axes, and is no table
        return (x[:batch, :heads] if x.ndim == 4 else x[:heads]).double()

    terms = case.terms(q, k).map(first)
    q, k, v = (x[:batch, :heads].double() for x in (q, k, v))
    return attention(q, k, v, terms, backend="reference", **case.settings(q, k))
