"""`AbsoluteKeys` against the double loop, over packed documents and padding too."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import AbsoluteKeys
from tests.factories import LENGTHS, judged, qkv


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("max_length", [1, 7, 65])
@pytest.mark.parametrize("groups", [1, 2])
def test_attention_equals_the_double_loop(lengths, max_length, groups):
    position = AbsoluteKeys(5, max_length, dtype=torch.float64)
    q, k, v = qkv(*lengths, g=groups)
    same, moved, terms = position(q, k)
    assert same is q
    assert not terms.tables
    rows = position.rows.detach()
    # Position after position from 0 on, the last row for all that follow.
    added = torch.stack([rows[min(n, max_length - 1)] for n in range(lengths[1])])
    assert_close(relpos.attention(q, moved, v, terms), judged(q, k + added, v))


def test_the_logits_are_those_of_the_queries_with_the_rows():
    position = AbsoluteKeys(5, 9, dtype=torch.float64)
    q, k, _ = qkv(4, 9)
    assert_close(position.logits(q, k), q @ position.rows.mT / 5**0.5)
    assert_close(position.logits(q, k, scale=0.1), 0.1 * q @ position.rows.mT)


def test_the_term_depends_on_the_place_and_not_on_the_offset():
    position = AbsoluteKeys(5, 9, dtype=torch.float64)
    q = torch.ones(1, 1, 9, 5, dtype=torch.float64)
    logits = position.logits(q, q)[0, 0]
    assert_close(logits, logits[:1].expand(9, -1))
    assert logits[0].unique().numel() == 9


def test_positions_count_along_the_row_over_packed_documents_and_padding():
    position = AbsoluteKeys(5, 9, dtype=torch.float64)
    q, k, v = qkv(9, 9)
    _, moved, terms = position(q, k)
    second = [x[:, :, 4:] for x in (q, k, v)]
    # The second document, or the text behind four tokens of padding, stands at positions 4..8.
    documents = torch.tensor([[0] * 4 + [1] * 5])
    packed = relpos.attention(q, moved, v, terms, documents=documents)[:, :, 4:]
    padded = relpos.attention(q, moved, v, terms, mask=documents[:, None, None] == 1)[:, :, 4:]
    want = judged(second[0], second[1] + position.rows.detach()[4:], second[2])
    assert_close(packed, want)
    assert_close(padded, want)
    alone = relpos.attention(second[0], position(*second[:2])[1], second[2])
    assert not torch.allclose(packed, alone, rtol=1e-3)


@pytest.mark.parametrize("name", ["head_dim", "max_length"])
def test_bad_sizes_are_named(name):
    with pytest.raises(ValueError, match=f"AbsoluteKeys: {name} must be an integer >= 1, got 0"):
        AbsoluteKeys(**{"head_dim": 4, "max_length": 4} | {name: 0})


@pytest.mark.no_typecheck
def test_keys_of_another_width_are_named():
    q, k, _ = qkv(3, 3)
    with pytest.raises(relpos.ShapeError, match=r"AbsoluteKeys: k must be .* with d=4, got"):
        AbsoluteKeys(4, 3)(q, k)
    words = "AbsoluteKeys: k must be torch.bfloat16 on cpu as the parameters are, got torch.float64"
    with pytest.raises(relpos.ShapeError, match=words):
        AbsoluteKeys(5, 3, dtype=torch.bfloat16)(q, k)
