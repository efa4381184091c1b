"""Where the queries of a call start: what schemes refuse, and the rows that follow from it."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from relpos import OffsetTable
from relpos.positions import (
    Alibi,
    BiasPosition,
    Compose,
    GatedBias,
    Kerple,
    Rotary,
    Sandwich,
    T5Bias,
    TransformerXL,
    XPos,
)
from tests.factories import normal


class Own(BiasPosition):
    """`B[j - i] = log(1 + |j - i|)`, with the rows that it is asked for."""

    def table(self, i, j):
        return OffsetTable(torch.arange(1 - j, i)[None].abs().double().log1p(), first=1 - j)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("start", [2.5, float("nan"), "3", True, torch.tensor(1.5)])
@pytest.mark.parametrize(
    "position",
    [
        Rotary(8),
        XPos(8),
        Alibi(2),
        Kerple(2),
        Sandwich(2),
        TransformerXL(8, 2),
        Compose(Rotary(8)),
        T5Bias(2),
    ],
    ids=lambda position: type(position).__name__,
)
def test_a_start_that_is_no_integer_is_named(position, start):
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match=r"^\w+: query_start must be an integer, got "):
        position(q, q, query_start=start)
    with pytest.raises(ValueError, match=r"^\w+: query_start must be .* less than 2\*\*60 in size"):
        position(q, q, query_start=2**63)


@pytest.mark.parametrize("start", [2**31 + 5, 2**40, -(2**40)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda causal: Alibi(2, causal=causal),
        lambda causal: Kerple(2, causal=causal),
        lambda causal: Sandwich(2, causal=causal),
        lambda causal: TransformerXL(8, 2, causal=causal),
    ],
)
def test_far_queries_have_the_rows_of_their_offsets_and_no_others(make, start, causal):
    q, k = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 5, 8)
    for table in make(causal)(q, k, query_start=start)[2].tables.values():
        assert table.first == 1 - start - 3
        assert table.rows.shape[1] == (1 if causal and start < 0 else 3 + 5 - 1)
        assert table.rows.isfinite().all()


@pytest.mark.parametrize("start", [None, 0, 2, 4, 7, -1, -9])
@pytest.mark.parametrize("i", [0, 1, 3, 6])
@pytest.mark.parametrize("j", [0, 1, 6])
def test_a_bias_of_ones_own_has_a_row_for_each_offset_wherever_queries_start(start, i, j):
    q, k, x = normal(1, 2, i, 8), normal(1, 2, j, 8), normal(1, i, 16)
    begin = j - i if start is None else start
    offsets = torch.arange(j) - torch.arange(begin, begin + i)[:, None]
    want = offsets.abs().double().log1p().expand(1, 2, i, j)
    assert_close(Own().logits(q, k, query_start=start), want)
    if start is None:
        assert_close(Own().dense(i, j), want[0, :1])
    assert_close(Compose(Own(), Own()).logits(q, k, query_start=start), 2 * want)
    gated = GatedBias(Own(), 2, 8, scale=0.5).double()
    assert_close(gated.logits(q, k, x, query_start=start), gated.gate(x)[..., None] * want)


@pytest.mark.no_typecheck
def test_what_a_bias_of_ones_own_must_have_is_said():
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(
        NotImplementedError, match=r"BiasPosition: must have a method table\(i, j\)"
    ):
        BiasPosition()(q, q)
    own = Own()
    own.table = lambda *_: SimpleNamespace()
    for call in (lambda: own(q, q), lambda: own.dense(3)):
        with pytest.raises(TypeError, match="Own: table must return an OffsetTable, got namespace"):
            call()
