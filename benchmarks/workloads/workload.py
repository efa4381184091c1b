"""One scheme at one size: its inputs, its exact result, and everything that computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from relpos import GridTerms, Terms, attention

from . import rivals
from .settings import Setting

__all__ = ["NATIVE", "TILED", "TRITON", "UNIT", "Run", "Workload", "contenders", "exact", "inputs"]

Run = Callable[[Tensor, Tensor, Tensor], Tensor]
UNIT = "plain SDPA"
NATIVE = "relpos native"
TRITON = "relpos triton"
TILED = "relpos tiled"
_MAX_SCORES = 2**26  # that are held in float64 at once


@dataclass(frozen=True)
class Workload:
    """One scheme at one size.

    Args:
        terms: from the queries and keys, in their dtype.
        tables: the leaves that are learned.
        causal: whether keys ahead are left out.
        documents: as in `relpos.attention`.
        mask: as in `relpos.attention`.
        dropout: as in `relpos.attention`.
        local: `window` or `key_ranges` of `relpos.attention`; none: all pairs.
        rivals: what others run for the same result, by name.
    """

    terms: Callable[[Tensor, Tensor], Terms | GridTerms]
    tables: tuple[Tensor, ...] = ()
    causal: bool = False
    documents: Tensor | None = None
    mask: Tensor | None = None
    dropout: float = 0.0
    local: dict[str, Any] = field(default_factory=dict)
    rivals: dict[str, Run] = field(default_factory=dict)

    def arguments(self, q: Tensor, k: Tensor) -> dict[str, Any]:
        """Arguments of `relpos.attention`. Queries that are fewer than the keys are decoded."""
        return {
            "causal": self.causal or q.shape[2] < k.shape[2],
            "documents": self.documents,
            "mask": self.mask,
            "dropout": self.dropout,
            **self.local,
        }


def inputs(setting: Setting) -> list[Tensor]:
    """Queries, keys and values; the same numbers each time."""
    device = setting.device
    generator = torch.Generator(device).manual_seed(0)
    keys = (setting.kv_heads or setting.heads, setting.length)
    return [
        torch.randn(setting.batch, *sizes, setting.width, generator=generator, device=device)
        .to(setting.torch_dtype)
        .requires_grad_()
        for sizes in ((setting.heads, setting.queries), keys, keys)
    ]


def contenders(setting: Setting, workload: Workload) -> dict[str, Run]:
    """What runs in a setting, by name: the unit, relpos's backends, then the rivals."""
    square = setting.queries == setting.length  # one query that sees everything needs no mask

    def ours(backend: str) -> Run:
        return lambda q, k, v: attention(
            q, k, v, workload.terms(q, k), backend=backend, **workload.arguments(q, k)
        )

    runs: dict[str, Run] = {
        UNIT: lambda q, k, v: rivals.plain(q, k, v, causal=workload.causal and square)
    }
    runs |= {f"relpos {backend}": ours(backend) for backend in setting.backends}
    return runs | (workload.rivals if setting.rivals else {})


def exact(workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The result in float64, of as many sequences and heads (the first ones) as fit in memory."""
    batch, heads = q.shape[:2]
    group = heads // k.shape[1]  # query heads of a key head, which stay together
    fitting = max(group, _MAX_SCORES // (q.shape[2] * k.shape[2]) // group * group)
    batch, heads = min(batch, max(1, fitting // heads)), min(heads, fitting)

    def first(x: Tensor) -> Tensor:  # q_rel alone has four axes, and is no table
        return (x[:batch, :heads] if x.ndim == 4 else x[:heads]).double()

    terms = workload.terms(q, k).map(first)
    q, k, v = (x[:batch, :count].double() for x, count in
               ((q, heads), (k, heads // group), (v, heads // group)))  # fmt: skip
    return attention(q, k, v, terms, backend="reference", **workload.arguments(q, k))
