"""Sandwich: inner products of sinusoidal positions, head by head, near and far."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import Sandwich, Sinusoidal
from tests.factories import LENGTHS, judged, qkv, table


def bias_table(heads, dim, reach):
    """Chi et al. 2023, section 5: `sum cos - e / 2` by the compression `8 n / h`."""
    rows = np.empty((heads, 2 * reach + 1))
    for h, n in np.ndindex(*rows.shape):
        waves = [np.cos((n - reach) / 10000 ** (2 * c / dim)) for c in range(dim // 2)]
        rows[h, n] = (sum(waves) - dim / 2) / (8 * (h + 1) / heads)
    return table(torch.from_numpy(rows), -reach)


@pytest.mark.parametrize("lengths", [*LENGTHS, (7, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_the_double_loop(lengths, causal):
    q, k, v = qkv(*lengths, h=3)
    terms = Sandwich(3, 16, causal=causal)(q, k)[2]
    got = relpos.attention(q, k, v, terms, causal=causal)
    # The bias is made in float32.
    want = judged(q, k, v, bias=bias_table(3, 16, 70), causal=causal)
    assert_close(got, want, rtol=0, atol=16 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("start", [0, 3, 20])
def test_rows_follow_the_start_of_the_queries(start):
    q, k, v = qkv(5, 9)
    terms = Sandwich(2, 16)(q, k, query_start=start)[2]
    want = judged(q, k, v, bias=bias_table(2, 16, 40), query_start=start)
    got = relpos.attention(q, k, v, terms, query_start=start)
    assert_close(got, want, rtol=0, atol=16 * torch.finfo(torch.float32).eps)


def test_it_is_the_inner_product_of_what_is_added_to_inputs():
    rows = Sinusoidal(128)(torch.zeros(1, 65, 128, dtype=torch.float64))[0]
    products = rows @ rows.mT
    compression = torch.arange(1, 5) * 8 / 4
    want = (products - 64) / compression[:, None, None]
    assert_close(Sandwich(4).dense(65).double(), want, rtol=0, atol=1e-5)


def test_a_call_in_float64_has_digits_of_float64():
    q = torch.zeros(1, 4, 200, 8, dtype=torch.float64)
    terms = Sandwich(4, 128)(q, q)[2]
    assert terms.bias is not None
    distance = torch.arange(-199, 200, dtype=torch.float64).abs()[:, None]
    waves = (distance / 10000.0 ** (torch.arange(0, 128, 2, dtype=torch.float64) / 128)).cos()
    want = (waves.sum(1) - 64) / (torch.arange(1, 5) * 2)[:, None]
    assert_close(terms.bias.rows, want, rtol=0, atol=1e-12)


def test_far_distances_lose_nothing():
    """Cosines of angles in float32 would be off by 0.004 at a distance of 100000."""
    far = 100_000
    got = Sandwich(1, 128).dense(1, far + 1)[0, 0, 0].item()
    waves = np.cos(far / 10000.0 ** (np.arange(0, 128, 2) / 128))
    assert got == pytest.approx((waves.sum() - 64) / 8, rel=1e-6)


def test_the_bias_is_0_at_offset_0_and_below_elsewhere():
    dense = Sandwich(3).dense(33)
    assert (dense.diagonal(dim1=1, dim2=2) == 0).all()
    assert (dense + torch.eye(33) > 0).logical_not().sum() == 3 * (33 * 33 - 33)


def test_there_is_nothing_to_learn_and_the_bias_follows_the_queries():
    position = Sandwich(2)
    assert not position.state_dict()
    q, k, _ = qkv(3, 5)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert position(q.to(dtype), k.to(dtype))[2].bias.rows.dtype == dtype
    with torch.device("meta"):
        x = torch.empty(1, 2, 3, 4)
    assert position(x, x)[2].bias.rows.is_meta


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="Sandwich: heads must be an integer >= 1, got 0"):
        Sandwich(0)
    with pytest.raises(ValueError, match="Sandwich: dim must be even, got 3"):
        Sandwich(2, 3)
    q, k, _ = qkv(3, 3)
    with pytest.raises(relpos.ShapeError, match=r"Sandwich: q must be .* with h=3, got"):
        Sandwich(3)(q, k)


def test_repr_tells_the_arguments():
    assert repr(Sandwich(2, causal=True)) == "Sandwich(heads=2, dim=128, causal=True)"
