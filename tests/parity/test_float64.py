"""The softmax that oracles are given stays in float64, and nothing else does."""

from __future__ import annotations

import torch

from tests.parity.oracles.float64 import float64_softmax

x = torch.linspace(-1, 1, 5, dtype=torch.float64)


def test_a_softmax_of_float64_stays_there_however_float32_is_asked_for():
    right = x.softmax(0)
    with float64_softmax():
        assert torch.equal(torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32), right)
        assert torch.equal(torch.nn.functional.softmax(x.float(), dim=-1), right)


def test_other_dtypes_and_what_comes_after_are_as_ever():
    with float64_softmax():
        assert torch.arange(3).float().dtype == torch.float32
        assert torch.nn.functional.softmax(x.half(), -1, dtype=torch.float32).dtype == torch.float32
    assert x.float().dtype == torch.float32
    assert torch.nn.functional.softmax(x, -1, dtype=torch.float32).dtype == torch.float32
