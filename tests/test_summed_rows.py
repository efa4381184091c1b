"""Rows that are picked again and again get the sum of all that flows to them, in 16 bits too."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from relpos import OffsetTable
from relpos.adapters.adaptations.disentangled import disentangled_terms
from relpos.positions import (
    AbsoluteKeys,
    Alibi,
    Compose,
    Deberta,
    LearnedAbsolute,
    T5Bias,
    WindowBias,
)
from relpos.positions.joining import add_tables
from relpos.summed_rows import picked_rows

LENGTH = 3000  # so that a sum of ones in 16 bits would stop on the way


def unchanged(p: Tensor) -> Tensor:
    """A projection whose gradient is what flows into it."""
    return p


class Disentangled(nn.Module):
    """The tables of adapted models."""

    def __init__(self, *, buckets: int, furthest: int) -> None:
        super().__init__()
        self.buckets, self.furthest = buckets, furthest
        self.rows = nn.Parameter(torch.randn(2 * (buckets or furthest), 4))

    def forward(self, length: int) -> Tensor:
        """The rows for queries of some tokens."""
        terms = disentangled_terms(
            self.rows, keys=unchanged, queries=None, heads=2, length=length,
            furthest=self.furthest, buckets=self.buckets,
        )  # fmt: skip
        assert terms.keys is not None
        return terms.keys.rows


def rows_of(position: nn.Module) -> Tensor:
    """All rows that a scheme hands over, or the keys that it changes."""
    q = torch.zeros(1, 2, LENGTH, 4, dtype=next(position.parameters()).dtype)
    _, k, terms = position(q, q)
    tables = [x.flatten() for x in terms.tensors]
    return torch.cat(tables) if tables else k


CASES: dict[str, tuple[nn.Module, Callable[[nn.Module], Tensor]]] = {
    "T5": (T5Bias(2, max_distance=LENGTH), rows_of),
    "T5 and ALiBi": (Compose(T5Bias(2, max_distance=9), Alibi(2)), rows_of),
    "DeBERTa": (
        Deberta(
            4, 2, LENGTH, position_buckets=8, dim=8, key_proj=unchanged, query_proj=unchanged
        ),
        rows_of,
    ),
    "DeBERTa, adapted": (Disentangled(buckets=8, furthest=LENGTH), lambda of: of(LENGTH)),
    # Fewer offsets than rows, most of which select one of a few.
    "DeBERTa, adapted, short": (
        Disentangled(buckets=LENGTH, furthest=2 * LENGTH), lambda of: of(LENGTH - 1)
    ),
    "absolute keys": (AbsoluteKeys(4, 64), rows_of),
    "learned absolute": (
        LearnedAbsolute(4, 64),
        lambda of: of(torch.zeros(1, LENGTH, 4, dtype=of.rows.dtype)),
    ),
    "window": (
        WindowBias(2, (2, 2), resize=False),
        lambda of: of(*[torch.zeros(1, 2, 560, 4)] * 2, shape=(70, 8))[2].joint_bias,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_what_flows_to_rows_is_summed_before_it_is_rounded(name: str, dtype: torch.dtype):
    module, rows = CASES[name]
    exact, module = deepcopy(module).double(), deepcopy(module).to(dtype)
    for each in (exact, module):
        rows(each).sum().backward()
    for found, wanted in zip(module.parameters(), exact.parameters(), strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert found.grad.dtype == dtype
        torch.testing.assert_close(found.grad, wanted.grad.to(dtype), rtol=0, atol=0)


def test_what_autocast_projects_is_summed_before_it_is_rounded():
    """The weights are of 32 bits, and what is picked of 16."""
    found: dict[torch.dtype, Tensor] = {}
    for dtype in (torch.bfloat16, torch.float64):
        torch.manual_seed(0)
        position = Deberta(
            4, 2, LENGTH, position_buckets=8, dim=8, key_proj=lambda p, d=dtype: p.to(d), p2c=False
        )
        q = torch.zeros(1, 2, LENGTH, 4, dtype=dtype)
        position(q, q)[2].keys.rows.sum().backward()
        found[dtype] = position.embedding.weight.grad
    wanted = found[torch.float64].bfloat16().float()
    assert wanted.max() > 1000
    torch.testing.assert_close(found[torch.bfloat16], wanted, rtol=0, atol=0)


@pytest.mark.parametrize("width", [(), (3,)])
def test_rows_are_those_of_indexing(width: tuple[int, ...]):
    rows = torch.randn(5, 2, *width, dtype=torch.bfloat16)
    index = torch.tensor([[4, 0, 0], [1, 1, 2]])
    assert torch.equal(picked_rows(rows, index), rows[index])


def test_tables_are_added_before_they_are_rounded():
    one, other = (
        OffsetTable(torch.randn(2, 9).to(dtype), -4) for dtype in (torch.float32, torch.bfloat16)
    )
    assert add_tables(one, other).rows.dtype == torch.float32
    found = add_tables(other, other.map(lambda rows: rows / 3))
    assert found.rows.dtype == torch.bfloat16
    wanted = other.rows.float() + (other.rows / 3).float()
    assert torch.equal(found.rows, wanted.bfloat16())
