"""Each scheme's terms at a setting's sizes, and what others run in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relpos import GridTerms, OffsetTable, Terms
from relpos.positions import Alibi

from . import rivals
from .flex import flex_bias, flex_keys, not_ahead
from .settings import NARROW_SHAW, RELATIVE_LOGITS, VIDEO, Setting
from .workload import Run, Workload

__all__ = ["SCHEMES", "make_workload"]

Draw = Callable[..., Tensor]  # a learned table of that shape


def _from_tables(
    make: Callable[..., Terms | GridTerms], *tables: Tensor, causal: bool = False, **runs: Run
) -> Workload:
    """Terms of tables, cast to the queries' dtype; an `_` in a rival's name is a space."""
    return Workload(
        lambda q, _: make(*(table.to(q.dtype) for table in tables)),
        tables,
        causal,
        rivals={name.replace("_", " "): run for name, run in runs.items()},
    )


def _rival(function: Callable[..., Tensor], *tables: Tensor) -> Run:
    """A rival that takes tables without an axis for heads, in the queries' dtype."""
    return lambda q, k, v: function(q, k, v, *(table[0].to(q.dtype) for table in tables))


def _bias_rival(function: Callable[..., Tensor], table: Tensor) -> Run:
    """A rival that takes a bias for each head, in the queries' dtype."""
    return lambda q, k, v: function(q, k, v, table.to(q.dtype))


def _gpu_only(setting: Setting, **runs: Run) -> dict[str, Any]:
    """Rivals that run on a GPU alone."""
    return runs if setting.device == "cuda" else {}


def _shaw_keys(setting: Setting, draw: Draw) -> Workload:
    rows = draw(1, 129, setting.width)
    return _from_tables(
        lambda rows: Terms(keys=OffsetTable(rows, -64)), rows,
        FlexAttention=_rival(flex_keys(), rows),
        **_gpu_only(setting, SDPA_with_a_dense_bias=_rival(rivals.dense_clipped_key_scores, rows)),
    )  # fmt: skip


def _narrow_shaw_keys(setting: Setting, draw: Draw) -> Workload:
    rows = draw(1, 33, setting.width)
    return _from_tables(lambda rows: Terms(keys=OffsetTable(rows, -16)), rows)


def _shaw(setting: Setting, draw: Draw) -> Workload:
    tables = draw(1, 129, setting.width), draw(1, 129, setting.width)
    return _from_tables(
        lambda keys, values: Terms(keys=OffsetTable(keys, -64), values=OffsetTable(values, -64)),
        *tables, literal_Shaw=_rival(rivals.literal_shaw, *tables),
    )  # fmt: skip


def _shaw_values(setting: Setting, draw: Draw) -> Workload:
    rows = draw(1, 129, setting.width)
    return _from_tables(lambda rows: Terms(values=OffsetTable(rows, -64)), rows)


def _queries(setting: Setting, draw: Draw) -> Workload:
    rows = draw(1, 129, setting.width)
    return _from_tables(
        lambda rows: Terms(queries=OffsetTable(rows, -64)), rows,
        gathered=_rival(rivals.gathered_queries, rows),
    )  # fmt: skip


def _clipped_bias(setting: Setting, draw: Draw) -> Workload:
    rows = draw(setting.heads, 257)
    on_gpu = _gpu_only(
        setting,
        FlexAttention=_bias_rival(flex_bias(), rows),
        SDPA_with_a_dense_bias=_bias_rival(rivals.dense_scalar_bias, rows),
    )
    return _from_tables(lambda rows: Terms(bias=OffsetTable(rows, -128)), rows, **on_gpu)


def _alibi(setting: Setting, draw: Draw) -> Workload:
    position = Alibi(setting.heads).to(setting.device)
    return Workload(lambda q, k: position(q, k)[2])


def _huang(setting: Setting, draw: Draw) -> Workload:
    rows, first = draw(1, setting.length, setting.width), 1 - setting.length
    flex = flex_keys(first=first, allows=not_ahead)
    return _from_tables(
        lambda rows: Terms(keys=OffsetTable(rows, first)), rows, causal=True,
        eager_skew=_rival(rivals.eager_skew, rows),
        **_gpu_only(setting, FlexAttention=_rival(flex, rows)),
    )  # fmt: skip


def _bidirectional(setting: Setting, draw: Draw) -> Workload:
    rows = draw(1, 2 * setting.length - 1, setting.width)
    return _from_tables(
        lambda rows: Terms(keys=OffsetTable(rows, 1 - setting.length)), rows,
        pad_and_reshape=_rival(rivals.pad_and_reshape, rows),
        SDPA_with_a_dense_bias=_rival(rivals.dense_key_scores, rows),
        FlexAttention=_rival(flex_keys(), rows),
    )  # fmt: skip


def _global_queries(setting: Setting, draw: Draw) -> Workload:
    rows = draw(1, 2 * setting.length - 1, setting.width)
    return _from_tables(
        lambda rows: Terms(queries=OffsetTable(rows, 1 - setting.length)), rows,
        gathered=_rival(rivals.gathered_queries, rows),
    )  # fmt: skip


def _relative_logits(setting: Setting, draw: Draw) -> Workload:
    def unit(*shape: int) -> Tensor:
        return (draw(*shape) * setting.width**0.5).detach()

    rows = unit(1, 1024, 16).requires_grad_()
    # As a layer hands them on: in the dtype of the queries.
    q_rel = unit(setting.batch, setting.heads, setting.queries, 16)
    q_rel = q_rel.to(setting.torch_dtype).requires_grad_()
    flex = flex_keys(first=-1023, allows=not_ahead, beyond="zero")
    return Workload(
        lambda q, _: Terms(keys=OffsetTable(rows.to(q.dtype), -1023, "zero"), q_rel=q_rel),
        (rows, q_rel),
        causal=True,
        rivals=_gpu_only(
            setting, FlexAttention=lambda q, k, v: flex(q, k, v, rows[0].to(q.dtype), q_rel)
        ),
    )


def _grid(setting: Setting, draw: Draw) -> Workload:
    shape = setting.grid_shape
    axes = _axes(shape, setting, draw)
    return _from_tables(
        _keys_along_axes(shape), *axes,
        SDPA_with_a_dense_bias=_rival(rivals.dense_decomposed_scores, *axes),
    )  # fmt: skip


def _video(setting: Setting, draw: Draw) -> Workload:
    """Eight frames, or one where eight have not as many tokens each."""
    frames = 8 if setting.length % 8 == 0 else 1
    shape = frames, *setting.at(setting.length // frames).grid_shape
    return _from_tables(_keys_along_axes(shape), *_axes(shape, setting, draw))


def _axes(shape: tuple[int, ...], setting: Setting, draw: Draw) -> tuple[Tensor, ...]:
    """A table for each axis."""
    return tuple(draw(1, 2 * size - 1, setting.width) for size in shape)


def _keys_along_axes(shape: tuple[int, ...]) -> Callable[..., GridTerms]:
    """Terms of such tables."""

    def terms(*tables: Tensor) -> GridTerms:
        each = zip(tables, shape, strict=True)
        return GridTerms(shape, tuple(Terms(keys=OffsetTable(rows, 1 - n)) for rows, n in each))

    return terms


def _joint_bias(setting: Setting, draw: Draw) -> Workload:
    shape = setting.grid_shape
    joint_bias = draw(setting.heads, *(2 * size - 1 for size in shape))
    return _from_tables(lambda joint_bias: GridTerms(shape, joint_bias=joint_bias), joint_bias)


def _documents(setting: Setting, draw: Draw) -> Workload:
    rows = draw(setting.heads, 257)
    documents = torch.arange(setting.length, device=setting.device)[None] // max(
        1, setting.length // 8
    )
    return Workload(
        lambda q, _: Terms(bias=OffsetTable(rows.to(q.dtype), -128)),
        (rows,),
        documents=documents,
        rivals={
            "SDPA with a dense mask": lambda q, k, v: rivals.masked_documents(
                q, k, v, rows.to(q.dtype), documents
            )
        },
    )


def _no_terms(setting: Setting, draw: Draw) -> Workload:
    return Workload(lambda q, k: Terms())


def _dropout(setting: Setting, draw: Draw) -> Workload:
    return replace(_shaw_keys(setting, draw), dropout=0.1, rivals={})


def _additive_mask(setting: Setting, draw: Draw) -> Workload:
    mask = draw(1, 1, setting.queries, setting.length).detach()
    return Workload(lambda q, k: Terms(), mask=mask.to(setting.torch_dtype))


def _boolean_mask(setting: Setting, draw: Draw) -> Workload:
    mask = draw(1, 1, setting.queries, setting.length).detach() > 0
    return replace(_shaw_keys(setting, draw), mask=mask, rivals={})


SCHEMES: dict[str, Callable[[Setting, Draw], Workload]] = {
    "Shaw keys, k=64": _shaw_keys,
    NARROW_SHAW: _narrow_shaw_keys,
    "Shaw keys + values, k=64": _shaw,
    "Shaw values, k=64": _shaw_values,
    "queries, k=64 (DeBERTa)": _queries,
    "bias, k=128 (T5)": _clipped_bias,
    "bias, all offsets (ALiBi)": _alibi,
    "Huang, global, causal": _huang,
    "bidirectional, global": _bidirectional,
    "queries, global": _global_queries,
    RELATIVE_LOGITS: _relative_logits,
    "grid, per axis (SAM)": _grid,
    "grid, joint bias (Swin)": _joint_bias,
    VIDEO: _video,
    "8 packed documents, bias": _documents,
    "no terms": _no_terms,
    "Shaw keys, dropout": _dropout,
    "Shaw keys, boolean mask": _boolean_mask,
    "additive mask": _additive_mask,
}


def make_workload(scheme: str, setting: Setting) -> Workload:
    """The scheme of that name at a setting's sizes; the same numbers each time."""
    device = setting.device
    generator = torch.Generator(device).manual_seed(1)

    # Without training there is no float32 copy that would have to be cast.
    dtype = torch.float32 if setting.backward else setting.torch_dtype

    def draw(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, device=device)
        return (drawn / setting.width**0.5).to(dtype).requires_grad_()

    return SCHEMES[scheme](setting, draw)
