"""Where the queries of a call start: what schemes refuse, and the rows that follow from it."""

import pytest
import torch

from relpos.positions import Alibi, Compose, Kerple, Rotary, Sandwich, TransformerXL, XPos


@pytest.mark.no_typecheck
@pytest.mark.parametrize("start", [2.5, float("nan"), "3", True, torch.tensor(1.5)])
@pytest.mark.parametrize(
    "position",
    [Rotary(8), XPos(8), Alibi(2), Kerple(2), Sandwich(2), TransformerXL(8, 2), Compose(Rotary(8))],
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
