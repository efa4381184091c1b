"""How a sequence is cut: every token once, causal work even, and back again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import relpos.distributed as cut
from relpos.distributed.layout import spans_of_ranks
from tests.distributed.cut import world

LAYOUTS = ("zigzag", "contiguous")


@given(length=st.integers(0, 200), size=st.integers(1, 9), layout=st.sampled_from(LAYOUTS))
def test_every_token_lies_on_one_rank(length: int, size: int, layout):
    found = [n for own in spans_of_ranks(length, size, layout) for run in own for n in range(*run)]
    assert sorted(found) == list(range(length))
    counts = [
        sum(end - first for first, end in own) for own in spans_of_ranks(length, size, layout)
    ]
    assert max(counts) - min(counts) <= 2


@given(size=st.integers(1, 9), chunk=st.integers(1, 9))
def test_zigzag_gives_every_rank_the_same_causal_work(size: int, chunk: int):
    length = 2 * size * chunk
    work = {
        sum(n + 1 for run in own for n in range(*run))
        for own in spans_of_ranks(length, size, "zigzag")
    }
    assert len(work) == 1


def test_zigzag_is_the_order_of_torchs_load_balancer():
    # Head and tail: rank r of P has chunks r and 2 P - 1 - r of 2 P.
    assert spans_of_ranks(16, 4, "zigzag") == (
        ((0, 2), (14, 16)), ((2, 4), (12, 14)), ((4, 6), (10, 12)), ((6, 10),),
    )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [0, 1, 3, 8, 33])
def test_unshard_undoes_shard(four, length: int, layout: str):
    four.run(_there_and_back, length, layout)


def _there_and_back(rank, size, length, layout) -> None:
    x = torch.arange(3.0 * length).view(1, length, 3)
    own = cut.shard(x, world(), layout)
    rows = [n for run in cut.spans(length, world(), layout) for n in range(*run)]
    assert torch.equal(own, x[:, rows])
    assert torch.equal(cut.unshard(own, world(), layout), x)
    assert torch.equal(cut.unshard(own.transpose(1, -1), world(), layout, -1), x.mT)
    of_bool = cut.unshard(own > 4, world(), layout)
    assert of_bool.dtype == torch.bool
    assert torch.equal(of_bool, x > 4)
    # Each rank uses the whole, rank r with the factor r + 1: the sum of the factors flows back.
    own = own.requires_grad_()
    (gradient,) = torch.autograd.grad(cut.unshard(own, world(), layout).sum() * (rank + 1), own)
    assert torch.equal(gradient, torch.full_like(own, size * (size + 1) / 2))


def test_wrong_arguments_are_named(two):
    two.run(_wrong)


def _wrong(rank, size) -> None:
    x = torch.zeros(2, 6)
    with pytest.raises(ValueError, match="shard: layout must be 'zigzag' or 'contiguous', got 'a'"):
        cut.shard(x, world(), "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shard: dim must be an axis of x"):
        cut.shard(x, world(), dim=2)
    with pytest.raises(TypeError, match="shard: x must be a tensor, got list"):
        cut.shard([1, 2], world())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="spans: rank must be below 2, the size of the group"):
        cut.spans(6, world(), rank=2)
    with pytest.raises(TypeError, match="spans: group must be a ProcessGroup or a DeviceMesh"):
        cut.spans(6, "cp")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"unshard: x must be cut as relpos.distributed.shard cuts 7 tokens, [34]"
    ):
        cut.unshard(torch.zeros(1, 5 - 3 * rank), world())


@pytest.mark.no_typecheck
def test_without_a_process_group_one_is_asked_for():
    with pytest.raises(RuntimeError, match="shard: there must be a process group"):
        cut.shard(torch.zeros(2, 3), None)  # type: ignore[arg-type]
