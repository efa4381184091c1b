"""`attention_weights` against the double loop."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.ops import attention_weights
from tests.factories import LENGTHS, judged, normal, qkv, table

KINDS = ["keys", "queries", "bias", "q_rel"]


@pytest.mark.parametrize("lengths", LENGTHS[:4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beyond", ["clamp", "zero"])
def test_weights_equal_the_double_loop_with_the_identity_as_values(kind, lengths, beyond):
    (i, j), first = lengths, -4
    q, k, _ = qkv(i, j, h=4, g=2)
    shape = {"bias": (4, 6), "q_rel": (4, 6, 3)}.get(kind, (4, 6, 5))
    rows, part = normal(*shape, seed=3), "keys" if kind == "q_rel" else kind
    q_rel = normal(2, 4, i, 3, seed=4) if kind == "q_rel" else None
    terms = relpos.Terms(**{part: relpos.OffsetTable(rows, first, beyond)}, q_rel=q_rel)
    mask = normal(2, 1, 1, j, seed=5)
    got = attention_weights(q, k, terms, causal=True, mask=mask, scale=0.3)
    want = judged(
        q, k, torch.eye(j, dtype=torch.float64).expand(2, 2, j, j), causal=True,
        mask=mask.numpy(), scale=0.3, q_rel=None if q_rel is None else q_rel.numpy(),
        **{part: table(rows, first, beyond)},
    )  # fmt: skip
    assert_close(got, want)


def test_a_value_table_plays_no_part():
    q, k, _ = qkv(5, 7)
    values = relpos.Terms(values=relpos.OffsetTable(normal(1, 3, 5), -1))
    settings = {"causal": False, "mask": None, "scale": None}
    assert_close(
        attention_weights(q, k, values, **settings),
        attention_weights(q, k, relpos.Terms(), **settings),
    )
