"""Where the queries of a call start: what each scheme that asks refuses."""

import pytest
import torch

from relpos.positions import Alibi, Compose, Kerple, Rotary, Sandwich, TransformerXL, XPos


@pytest.mark.no_typecheck
@pytest.mark.parametrize("start", [2.5, float("nan"), "3", True, torch.tensor(1.5), 2**63])
@pytest.mark.parametrize(
    "position",
    [Rotary(8), XPos(8), Alibi(2), Kerple(2), Sandwich(2), TransformerXL(8, 2), Compose(Rotary(8))],
    ids=lambda position: type(position).__name__,
)
def test_a_start_that_is_no_integer_is_named(position, start):
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match=r"^\w+: query_start must be an integer, got "):
        position(q, q, query_start=start)
