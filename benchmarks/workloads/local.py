"""Local attention in the benchmark: which pairs take part, and what computes it.

The floor of a pattern is the share of all pairs that takes part times the time of plain SDPA over
all pairs: what plain attention would take if it left the others out at no cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from relpos import OffsetTable, Terms, chunk_ranges

from .flex import Allows, flex_keys, flex_plain
from .settings import NO_TERMS, SHAW, Setting
from .workload import Workload

__all__ = ["DENSE_MASK", "LOCAL_TERMS", "NO_TERMS", "PATTERNS", "Pattern", "local_workload"]

SHAW_KEYS = SHAW[0]
LOCAL_TERMS = (NO_TERMS, SHAW_KEYS)
DENSE_MASK = "SDPA with a dense mask"
_CHUNK = 1024  # tokens


@dataclass(frozen=True)
class Pattern:
    """Which pairs take part.

    Args:
        arguments: of `relpos.attention`, at a length in tokens.
        allows: the same pair by pair, for FlexAttention.
    """

    arguments: Callable[[int], dict[str, Any]]
    allows: Allows

    def pairs(self, length: int) -> int:
        """How many take part."""
        i = torch.arange(length)
        arguments = self.arguments(length)
        if "key_ranges" in arguments:
            first, end = arguments["key_ranges"][0].unbind(-1)
        else:
            left, right = arguments["window"]
            first, end = (i - left).clamp(min=0), (i + right + 1).clamp(max=length)
        return int((end - first).sum())

    def share(self, length: int) -> float:
        """Of all pairs."""
        return self.pairs(length) / length**2


def _window(left: int, right: int) -> Pattern:
    return Pattern(
        lambda length: {"window": (left, right)},
        lambda b, h, i, j: (j - i >= -left) & (j - i <= right),
    )


def _chunks() -> Pattern:
    def allows(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        before = i // _CHUNK - j // _CHUNK
        return (before >= 0) & (before <= 1)

    return Pattern(
        lambda length: {"key_ranges": chunk_ranges(length, _CHUNK, left_chunks=1)}, allows
    )


PATTERNS = {
    "window (512, 0)": _window(512, 0),
    "window (256, 256)": _window(256, 256),
    f"chunks of {_CHUNK}, one before": _chunks(),
}


def local_workload(pattern: Pattern, terms: str, setting: Setting) -> Workload:
    """A pattern with some terms at a setting's sizes; the same numbers each time."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(1, 129, setting.width, generator=generator) / setting.width**0.5
    rows.requires_grad_()
    local = pattern.arguments(setting.length)
    if terms == NO_TERMS:
        rivals = {
            "FlexAttention": flex_plain(pattern.allows),
            DENSE_MASK: lambda q, k, v: _masked(pattern, q, k, v),
        }
        return Workload(lambda q, k: Terms(), local=local, rivals=rivals)
    flex = flex_keys(allows=pattern.allows)
    return Workload(
        lambda q, k: Terms(keys=OffsetTable(rows.to(q.dtype), -64)), (rows,), local=local,
        rivals={"FlexAttention": lambda q, k, v: flex(q, k, v, rows[0].to(q.dtype))},
    )  # fmt: skip


def _masked(pattern: Pattern, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain SDPA with the pattern as a boolean mask, `l x l`."""
    return scaled_dot_product_attention(q, k, v, attn_mask=_dense_mask(pattern, q.shape[2]))


@cache
def _dense_mask(pattern: Pattern, length: int) -> Tensor:
    """`(length, length)`, as who calls attention often would keep it."""
    i, zero = torch.arange(length), torch.zeros((), dtype=torch.int64)
    return torch.cat([pattern.allows(zero, zero, rows[:, None], i) for rows in i.split(1024)])
