"""`Alibi`: the paper's slopes, the double loop, half precision, learned slopes."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import Alibi
from tests.factories import LENGTHS, judged, qkv, table

# The paper's section 3 and footnotes for 8 and 16 heads; the authors' rule for the rest.
SLOPES = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    8: [2**-n for n in range(1, 9)],
    12: [*(2**-n for n in range(1, 9)), *(2 ** (-n / 2) for n in (1, 3, 5, 7))],
    16: [2 ** (-n / 2) for n in range(1, 17)],
}


def bias_table(position, i, j):
    """`-m |o|` for every offset of the call."""
    at = torch.arange(-(i + j), i + j + 1, dtype=torch.float64)
    return table(-position.slopes.double()[:, None] * at.abs(), -(i + j))


@pytest.mark.parametrize("heads", SLOPES)
def test_slopes_are_the_papers(heads):
    want = torch.tensor(SLOPES[heads], dtype=torch.float64)
    assert_close(Alibi(heads, dtype=torch.float64).slopes, want, rtol=1e-14, atol=0)


@pytest.mark.parametrize("lengths", [*LENGTHS, (7, 3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_attention_equals_the_double_loop(lengths, causal, learned):
    position = Alibi(3, causal=causal, learned=learned, dtype=torch.float64)
    q, k, v = qkv(*lengths, h=3)
    got = relpos.attention(q, k, v, position(q, k)[2], causal=causal)
    bias = bias_table(position, *lengths)
    assert_close(got, judged(q, k, v, bias=bias, causal=causal))


@pytest.mark.parametrize("start", [0, 3, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_follow_the_start_of_the_queries(start, causal):
    position = Alibi(2, causal=causal, dtype=torch.float64)
    q, k, v = qkv(5, 9)
    terms = position(q, k, query_start=start)[2]
    got = relpos.attention(q, k, v, terms, causal=causal, query_start=start)
    bias = bias_table(position, 40, 40)
    assert_close(got, judged(q, k, v, bias=bias, causal=causal, query_start=start))


def test_there_is_a_row_for_each_offset_of_the_call_and_no_more():
    for i, j in LENGTHS:
        both, past = (Alibi(2, causal=causal).table(i, j) for causal in (False, True))
        assert (both.first, both.last) == (1 - j, i - 1)
        assert (past.first, past.last) == (1 - j, 0)


@pytest.mark.parametrize("lengths", [(0, 0), (0, 1), (1, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_without_queries_or_keys_there_is_nothing_to_read(lengths, causal):
    position = Alibi(2, causal=causal, dtype=torch.float64)
    q, k, v = qkv(*lengths)
    got = relpos.attention(q, k, v, position(q, k)[2], causal=causal)
    assert_close(got, torch.zeros_like(q))
    assert position.dense(*lengths).shape == (2, *lengths)


def test_long_sequences_are_never_clamped():
    far = Alibi(1).dense(1, 100_001)[0, 0]
    assert_close(far[0], torch.tensor(-100_000 / 256))


def test_the_past_is_enough_under_a_causal_mask():
    q, k, v = qkv(9, 9)
    both, past = (
        relpos.attention(q, k, v, Alibi(2, causal=causal)(q, k)[2], causal=True)
        for causal in (False, True)
    )
    assert_close(past, both)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loses_nothing_of_the_slopes(dtype):
    for heads in (8, 12, 40):
        assert_close(Alibi(heads).to(dtype).slopes, Alibi(heads).slopes, rtol=0, atol=0)


def test_the_bias_has_the_dtype_of_the_queries():
    q, k, _ = qkv(3, 5)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert Alibi(2)(q.to(dtype), k.to(dtype))[2].bias.rows.dtype == dtype


def test_only_learned_slopes_are_in_the_state_dict():
    assert not Alibi(2).state_dict()
    assert list(Alibi(2, learned=True).state_dict()) == ["log2_slopes"]


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="Alibi: heads must be an integer >= 1, got 0"):
        Alibi(0)
    q, k, _ = qkv(3, 3)
    with pytest.raises(relpos.ShapeError, match=r"Alibi: q must be \(b, h, i, d\) with h=3, got"):
        Alibi(3)(q, k)
    for count in (-1, 1.5, "3", True):
        with pytest.raises(ValueError, match=r"Alibi.dense: i must be an integer >= 0, got"):
            Alibi(3).dense(count)
        with pytest.raises(ValueError, match=r"Alibi.dense: j must be an integer >= 0, got"):
            Alibi(3).dense(2, count)
