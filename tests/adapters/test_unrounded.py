"""The context that keeps float64: what would be rounded is not, and all is as before behind it."""

import torch
from torch import nn

from .unrounded import unrounded


def test_what_is_float64_stays_so_until_the_context_ends():
    x, single = torch.randn(3, 5, dtype=torch.float64), torch.float32
    ways = [
        lambda x: x.float(),
        lambda x: x.to(single),
        lambda x: x.to(dtype=single),
    ]
    with unrounded():
        assert all(way(x).dtype == torch.float64 for way in ways)
        assert all(way(x.half()).dtype == torch.float32 for way in ways)
    assert [way(x).dtype for way in ways] == 3 * [torch.float32]


def test_experts_take_the_rows_up_to_their_offsets():
    x, weights = torch.randn(9, 4), torch.randn(3, 4, 8)
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)
    expected = torch.cat([x[:2] @ weights[0], x[2:7] @ weights[2]])
    with unrounded():
        got = nn.functional.grouped_mm(x, weights, offs=ends)
    torch.testing.assert_close(got[:7], expected)
