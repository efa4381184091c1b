"""KERPLE: both formulas distance by distance, the ranges of its numbers, and ALiBi within it."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import Alibi, Kerple
from tests.factories import LENGTHS, judged, normal, qkv, table

D = torch.float64
kinds = pytest.mark.parametrize("kind", ["log", "power"])


def drawn(heads, kind, **arguments):
    """A position whose numbers differ per head."""
    position = Kerple(heads, kind, dtype=D, **arguments)
    with torch.no_grad():
        for n, numbers in enumerate(position.parameters()):
            numbers.copy_(normal(*numbers.shape, seed=n))
    return position


def bias_table(position, reach):
    """Chi et al. 2022, section 4: one number for each head and offset."""
    r1, r2 = (numbers.detach().numpy() for numbers in (position.r1, position.r2))
    rows = np.empty((position.heads, 2 * reach + 1))
    for h, n in np.ndindex(*rows.shape):
        away = abs(n - reach)
        power = away ** r2[h] if away else 0.0
        rows[h, n] = -r1[h] * (np.log(1 + r2[h] * away) if position.kind == "log" else power)
    return table(torch.from_numpy(rows), -reach)


@kinds
@pytest.mark.parametrize("lengths", [*LENGTHS, (7, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_the_double_loop(kind, lengths, causal):
    position = drawn(3, kind, causal=causal)
    q, k, v = qkv(*lengths, h=3)
    got = relpos.attention(q, k, v, position(q, k)[2], causal=causal)
    assert_close(got, judged(q, k, v, bias=bias_table(position, 70), causal=causal))


@kinds
@pytest.mark.parametrize("start", [0, 3, 20])
def test_rows_follow_the_start_of_the_queries(kind, start):
    position = drawn(2, kind)
    q, k, v = qkv(5, 9)
    got = relpos.attention(q, k, v, position(q, k, query_start=start)[2], query_start=start)
    assert_close(got, judged(q, k, v, bias=bias_table(position, 40), query_start=start))


def test_a_power_of_one_with_the_slopes_is_alibi():
    position = Kerple(4, "power", dtype=D)
    alibi = Alibi(4, dtype=D)
    with torch.no_grad():
        position.log_r1.copy_(alibi.slopes.log())
        position.logit_r2.zero_()
    assert_close(position.dense(9, 33), alibi.dense(9, 33))


@kinds
def test_numbers_start_within_the_authors_ranges(kind):
    torch.manual_seed(0)
    position = Kerple(4000, kind)
    r1, r2 = position.r1, position.r2
    wide, narrow = (r1, r2) if kind == "log" else (r2, r1)
    assert 0.009 < wide.min() < 0.05
    assert 1.95 < wide.max() < 2.001
    assert 0.009 < narrow.min() < 0.05
    assert 0.98 < narrow.max() < 1.001


@kinds
def test_no_step_of_an_optimiser_leaves_the_range(kind):
    position = Kerple(3, kind)
    for far in (-30.0, 30.0):
        with torch.no_grad():
            for numbers in position.parameters():
                numbers.fill_(far)
        assert (position.r1 > 0).all()
        assert (position.r2 > 0).all()
        assert kind == "log" or (position.r2 <= 2).all()
        assert (position.dense(5) <= 0).all()


@kinds
def test_the_gradient_at_distance_zero_is_a_number(kind):
    position = drawn(2, kind)
    position.dense(1, 1).sum().backward()
    for numbers in position.parameters():
        assert (numbers.grad == 0).all()


@kinds
def test_half_precision_computes_in_float32(kind):
    position = Kerple(2, kind).bfloat16()
    assert position.table(3, 5).rows.dtype == torch.float32
    q, k, _ = (x.bfloat16() for x in qkv(3, 5))
    assert position(q, k)[2].bias.rows.dtype == torch.bfloat16


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="Kerple: heads must be an integer >= 1, got 0"):
        Kerple(0)
    with pytest.raises(ValueError, match="Kerple: kind must be 'log' or 'power', got 'exp'"):
        Kerple(2, "exp")
    q, k, _ = qkv(3, 3)
    with pytest.raises(relpos.ShapeError, match=r"Kerple: q must be \(b, h, i, d\) with h=3, got"):
        Kerple(3)(q, k)


def test_repr_tells_the_arguments():
    assert repr(Kerple(2, "power")) == "Kerple(heads=2, kind='power', causal=False)"
