"""Sinusoids entry by entry, in both layouts and in half precision."""

import math

import pytest
import torch

from relpos.positions.sinusoids import sinusoids


@pytest.mark.parametrize("dim", [1, 2, 5, 8])
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_sinusoids_equal_the_formula_at_every_entry(dim, layout):
    got = sinusoids(torch.arange(-3, 4), dim, layout=layout, dtype=torch.float64)
    assert got.shape == (7, dim)
    sines = (dim + 1) // 2
    for row, p in enumerate(range(-3, 4)):
        for c in range(dim):
            cosine, wave = (c % 2, c // 2) if layout == "interleaved" else divmod(c, sines)
            angle = p / 10000 ** (2 * wave / dim)
            want = math.cos(angle) if cosine else math.sin(angle)
            assert abs(got[row, c].item() - want) < 1e-12


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype, layout):
    at = torch.arange(-2000, 2001)
    got = sinusoids(at, 6, layout=layout, dtype=dtype)
    want = sinusoids(at, 6, layout=layout, dtype=torch.float32)
    assert torch.equal(got, want.to(dtype))


@pytest.mark.parametrize("far", [100_000, -10_000_000, 2**31 + 5])
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_far_positions_lose_nothing_but_the_rounding_of_the_result(far, layout):
    """Angles in float32 would be off by 0.004 at position 100000."""
    at = torch.tensor([far])
    got = sinusoids(at, 64, layout=layout, dtype=torch.float32)
    want = sinusoids(at, 64, layout=layout, dtype=torch.float64)
    assert (got - want).abs().max() <= 4 * torch.finfo(torch.float32).eps
