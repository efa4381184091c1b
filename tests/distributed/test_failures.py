"""A rank that fails, differs or stays away: every rank says so, and none waits for ever."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import relpos.distributed as cut
from benchmarks.measure.ranks import Pool
from relpos import GridTerms, OffsetTable, Terms
from relpos.distributed.ranks.group import resolve_group
from tests.distributed.cut import world

METHODS = ("heads", "gather", "ring")
TIMEOUT = 3


def tokens(count: int) -> dict[str, Any]:
    """The shards of a rank with so many tokens."""
    return dict.fromkeys("qkv", torch.zeros(1, 2, count, 4))


def local(**changes: Any) -> dict[str, Any]:
    """The arguments of a rank."""
    return tokens(4) | {"group": world()} | changes


def words(rank: int, size: int, differences: list[dict[str, Any]]) -> str:
    """What a rank says of a call in which it has its own arguments."""
    torch.manual_seed(0)
    try:
        cut.attention(**local(**differences[rank]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


SAME = "must be the same on every rank of the group, got"
TABLE = Terms(keys=OffsetTable(torch.zeros(1, 3, 4), -1))


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([{"causal": True}, {}], f"ValueError: attention: causal {SAME} True on rank 0 and False"),
        ([{"scale": 0.5}, {"scale": 0.25}], f"scale {SAME} 0.5 on rank 0 and 0.25 on rank 1"),
        ([{"layout": "zigzag"}, {"layout": "contiguous"}], f"layout {SAME} 'zigzag' on rank 0"),
        ([{"method": "ring"}, {"method": "gather"}], f"method {SAME} 'ring' on rank 0"),
        ([{"dropout": 0.1}, {}], f"dropout {SAME} 0.1 on rank 0 and 0.0 on rank 1"),
        ([{"terms": TABLE}, {}], f"terms.keys.rows {SAME} ([1, 3, 4], 'torch.float32'"),
        ([{"mask": torch.ones(1, 1, 1, 4).bool()}, {}], f"mask {SAME}"),
        ([{"q": torch.zeros(1, 2, 4, 8)}, {}], "rank 0 of 2 failed: ShapeError: attention: k must"),
        ([{"q": torch.zeros(1, 2, 4, 4).requires_grad_()}, {}], f"q {SAME}"),
        ([{}, {"k": torch.zeros(1, 2, 4, 4).double()}], "failed: ShapeError: attention: k must be"),
        ([{}, {"softcap": -1.0}], "rank 1 of 2 failed: ValueError: attention: softcap must be"),
        (
            [
                {"query_start": 3, "documents": torch.zeros(1, 4).long()},
                {
                    "query_start": 3,
                    "documents": torch.zeros(1, 4).long(),
                    "query_documents": torch.zeros(1, 4).long(),
                },
            ],
            f"whether there are query_documents {SAME} False on rank 0 and True on rank 1",
        ),
        (
            [{}, {"q": "no"}],
            "rank 1 of 2 failed: TypeError: attention: q must be a tensor, got str",
        ),
        ([{}, {"layout": "spiral"}], "rank 1 of 2 failed: ValueError: attention: layout must be"),
        (
            [tokens(5), tokens(3)],
            "q must be cut as relpos.distributed.shard cuts 8 tokens, 4 of them",
        ),
        (
            [{"mask": torch.ones(1, 1, 4, 8).bool()}, {"mask": torch.ones(1, 1, 4, 4).bool()}],
            "mask must have 8 keys, those of the whole sequence, or with one row those 4 of rank 1",
        ),
    ],
)
def test_what_differs_is_named_before_the_first_exchange(two, differences, expected: str):
    found = two.run(words, differences)
    # What differs is said alike by all; of what is wrong on one rank the others say where.
    every = (
        all if SAME in expected or "must be cut" in expected or "must have 8" in expected else any
    )
    assert every(expected in said for said in found), found
    assert all(said != "nothing" for said in found), found


def test_what_no_rank_can_do_is_refused_in_words(two):
    two.run(_refused)


def _refused(rank, size) -> None:
    grid = GridTerms((2, 4), (Terms(), Terms()))
    with pytest.raises(RuntimeError, match="'ring' does not support GridTerms: a rank's tokens"):
        cut.attention(**local(terms=grid, method="ring"))
    one = torch.zeros(1, 1, 4, 4)
    with pytest.raises(ValueError, match="'heads' must have at least one query head for each of"):
        cut.attention(one, one, one, group=world(), method="heads")
    with pytest.raises(ValueError, match="query_documents must be given where queries are other"):
        cut.attention(**local(query_start=3, documents=torch.zeros(1, 4, dtype=torch.int64)))
    with pytest.raises(RuntimeError, match="reference: not supported by this backend: a part of"):
        cut.attention(**local(method="ring", backend="reference"))
    cut.attention(**local(method="heads", backend="reference"))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("method", ["gather", "ring"])
def test_a_rank_that_fails_while_it_computes_tells_the_others(two, method: str, backward: bool):
    began = time.monotonic()
    found = two.run(fails, method, backward)
    assert found == ["MemoryError: no room", f"ExchangeError: {TOLD}"]
    assert time.monotonic() - began < 20


TOLD = "attention: rank 0 of 2 failed: MemoryError: no room"


def fails(rank, size, method, backward, failing=0, group=None) -> str:
    """What a rank raises when one of them cannot compute its part, forward or backward."""
    name = "add_gradients" if backward else "add_parts"
    with pytest.MonkeyPatch.context() as patch:
        if rank == failing:
            for module in ("ring", "gather"):
                patch.setattr(f"relpos.distributed.methods.{module}.{name}", _no_room)
        x = torch.zeros(1, 2, 4, 4).requires_grad_()
        try:
            cut.attention(x, x, x, group=group or world(), method=method).sum().backward()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def _no_room(*_: object) -> None:
    raise MemoryError("no room")


def test_a_rank_that_fails_by_heads_tells_the_others(two):
    assert two.run(_fails_by_heads) == ["MemoryError: no room", f"ExchangeError: {TOLD}"]


def _fails_by_heads(rank, size) -> str:
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr("relpos.distributed.methods.heads.choose", _no_room)
        try:
            cut.attention(**local(method="heads"))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.no_typecheck
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.costly(1, of="ranks that fail")
def test_a_rank_that_stays_away_is_not_waited_for_for_ever(method: str):
    pool = Pool(2, timeout=TIMEOUT, start="forkserver")
    try:
        began = time.monotonic()
        failed, said = pool.outcomes(_stays_away, method)[0]
        assert failed
        assert "attention: rank 0 of 2 could not exchange its arguments: another rank of" in said
        assert time.monotonic() - began < 10 * TIMEOUT
    finally:
        pool.close()


def _stays_away(rank, size, method) -> None:
    if rank == 0:
        cut.attention(**local(method=method))


@pytest.mark.no_typecheck
@pytest.mark.parametrize("method", ["gather", "ring"])
@pytest.mark.costly(1, of="ranks that fail")
def test_without_checks_a_failure_ends_at_the_time_limit(method: str):
    pool = Pool(2, timeout=TIMEOUT, start="forkserver")
    try:
        found = pool.outcomes(_fails_unchecked, method)
        assert all(failed for failed, _ in found)
        assert "MemoryError: no room" in found[0][1]
        assert "could not exchange" in found[1][1]
    finally:
        pool.close()


def _fails_unchecked(rank, size, method) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            for module in ("ring", "gather"):
                patch.setattr(f"relpos.distributed.methods.{module}.add_gradients", _no_room)
        x = torch.zeros(1, 2, 4, 4).requires_grad_()
        cut.attention(x, x, x, group=world(), method=method, check=False).sum().backward()


def test_want_of_memory_is_not_put_on_another_rank(two):
    two.run(_no_memory)


def _no_memory(rank, size) -> None:
    ranks = resolve_group("test", world())
    with pytest.raises(RuntimeError, match="allocate memory"), ranks.exchanging("test", "much"):
        torch.empty(1 << 50)
