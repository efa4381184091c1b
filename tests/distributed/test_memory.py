"""What a rank holds while it computes: tensors as long as a shard or as the sequence, counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

import relpos.distributed as cut
from relpos.distributed.methods import blocks, ring
from relpos.distributed.ranks.exchange import Transfer
from relpos.ops.dispatch import choose_for_parts
from tests.distributed.cut import world


@pytest.mark.parametrize("method", ["gather", "ring"])
def test_gradients_of_one_block_are_held_at_a_time(two, method: str):
    counts = two.run(_gradients_held, method)
    assert len(counts[0]) > 1  # rank 0 has two runs of the sequence
    assert {count for of_rank in counts for count in of_rank} == {0}


def _gradients_held(rank, size, method) -> list[int]:
    """How many gradients of earlier blocks there are whenever the next one's are asked for."""
    held, counts = _Alive(), []

    def choose(backend: str, inputs: Any) -> Any:
        chosen = choose_for_parts(backend, inputs)

        def part_gradients(*given: Any) -> dict[str, Tensor]:
            counts.append(held.count())
            return held.add(chosen.part_gradients(*given))

        return SimpleNamespace(part=chosen.part, part_gradients=part_gradients)

    blocks.choose_for_parts = choose
    try:
        _both_passes(rank, size, method)
    finally:
        blocks.choose_for_parts = choose_for_parts
    return counts


def test_a_ring_holds_the_keys_of_two_other_ranks(four):
    for found in four.run(_shards_held):
        assert max(found) == 2


def _shards_held(rank, size) -> list[int]:
    """How many keys of others there are whenever a place for the next ones is made."""
    held, counts = _Alive(), []

    class TransferHeld(Transfer):
        def __init__(self, ranks: Any, sent: Any, received: Any, *, steps: int, kind: str) -> None:
            if kind == "ring":
                held.add({"k": received["k"]})
                counts.append(held.count())
            super().__init__(ranks, sent, received, steps=steps, kind=kind)

    ring.Transfer = TransferHeld
    try:
        _both_passes(rank, size, "ring")
    finally:
        ring.Transfer = Transfer
    return counts


class _Alive:
    """Tensors, of which it is known how many there are still."""

    def __init__(self) -> None:
        self._tensors: list[ref[Tensor]] = []

    def add(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        self._tensors += [ref(x) for x in named.values()]
        return named

    def count(self) -> int:
        return sum(x() is not None for x in self._tensors)


def _both_passes(rank: int, size: int, method: Any) -> None:
    draw = torch.Generator().manual_seed(rank)
    q, k, v = (torch.randn(1, 2, 8, 4, generator=draw).requires_grad_() for _ in range(3))
    output = cut.attention(q, k, v, group=world(), method=method, causal=True)
    output.sum().backward()
