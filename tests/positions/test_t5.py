"""`T5Bias`: the bucket of each pair, one-sided and two-sided, against the double loop."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.offsets import offsets, t5_buckets
from relpos.positions import T5Bias
from tests.factories import LENGTHS, judged, qkv

SIZES = [{}, {"buckets": 6, "max_distance": 5}, {"buckets": 320, "max_distance": 800}]


def dense(position, i, j):
    """Each pair's bias, straight from the buckets of its offset."""
    at = t5_buckets(
        offsets(i, j), position.buckets, position.max_distance,
        bidirectional=position.bidirectional,
    )  # fmt: skip
    return position.bias.detach()[:, at]


@pytest.mark.parametrize("lengths", [*LENGTHS, (3, 900)])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_bias_of_each_pair_is_that_of_its_bucket(lengths, bidirectional, sizes):
    position = T5Bias(2, **sizes, bidirectional=bidirectional)
    assert torch.equal(position.dense(*lengths), dense(position, *lengths))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
def test_attention_equals_the_double_loop(lengths, bidirectional, heads):
    position = T5Bias(heads, 8, 20, bidirectional=bidirectional, dtype=torch.float64)
    torch.nn.init.normal_(position.bias)
    q, k, v = qkv(*lengths)
    arguments = {"causal": not bidirectional, "scale": 1.0}
    got = relpos.attention(*position(q, k)[:2], v, position(q, k)[2], **arguments)
    mask = np.broadcast_to(dense(position, *lengths).numpy(), (2, 2, *lengths))
    assert_close(got, judged(q, k, v, mask=mask, **arguments))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_table_ends_where_the_last_bucket_starts(bidirectional):
    position = T5Bias(1, bidirectional=bidirectional)
    table = position.table(3, 5)
    edge = t5_buckets(torch.tensor([table.first + 1, table.first]), bidirectional=bidirectional)
    last = 15 if bidirectional else 31
    assert edge.tolist() == [last - 1, last]
    assert table.last == (-table.first if bidirectional else 0)


def test_keys_ahead_of_a_decoder_share_the_bucket_of_the_query():
    position = T5Bias(2, bidirectional=False)
    ahead = position.dense(9)[:, 0]
    assert torch.equal(ahead, position.bias[:, :1].expand(-1, 9))


def test_both_sides_have_buckets_of_their_own():
    position = T5Bias(1)
    position.bias.data = torch.arange(32.0)[None]
    assert position.dense(3)[0].tolist() == [[0, 17, 18], [1, 0, 17], [2, 1, 0]]


def test_the_bias_is_not_scaled():
    position = T5Bias(2, dtype=torch.float64)
    q, k, _ = qkv(5, 9)
    for scale in (None, 1.0, 0.1):
        assert_close(position.logits(q, k, scale=scale)[0], position.dense(5, 9))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"heads": 0}, "heads must be an integer >= 1, got 0"),
        ({"buckets": 3}, "buckets must be an integer >= 4, got 3"),
        ({"buckets": 1, "bidirectional": False}, "buckets must be an integer >= 2, got 1"),
        ({"max_distance": 8}, "max_distance must be an integer >= 9, got 8"),
        (
            {"max_distance": 16, "bidirectional": False},
            "max_distance must be an integer >= 17, got 16",
        ),
    ],
)
def test_bad_sizes_are_named(arguments, named):
    with pytest.raises(ValueError, match=f"T5Bias: {named}"):
        T5Bias(**{"heads": 2} | arguments)


@pytest.mark.no_typecheck
def test_queries_with_other_heads_are_named():
    q, k, _ = qkv(3, 3)
    with pytest.raises(relpos.ShapeError, match=r"T5Bias: q must be \(b, h, i, d\) with h=3, got"):
        T5Bias(3)(q, k)
