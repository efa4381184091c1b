"""AI Summer's modules: their logits pair by pair, in attention, and their state dicts."""

import copy

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.adapters import AbsPosEmb1D, RelPosEmb1D, RelPosEmb2D
from tests.factories import LENGTHS, judged, normal, qkv

MAPS = [(1, 1), (1, 5), (3, 3), (3, 5), (5, 3), (7, 1)]
per_head = pytest.mark.parametrize("heads", [None, 1, 2])


def row(rows, head, n):
    """Row `n` of a head's table, the end rows for those outside."""
    rows = rows.detach().numpy()
    rows = rows if rows.ndim == 2 else rows[head if len(rows) > 1 else 0]
    return rows[min(max(n, 0), len(rows) - 1)]


def logits_1d(position, q, j):
    """`q_i . E[j - i]`, pair by pair; the queries are the last positions."""
    b, h, i, _ = q.shape
    out = np.empty((b, h, i, j))
    for n, head, query, key in np.ndindex(*out.shape):
        offset = key - (query + j - i)
        rows = row(position.rel_pos_emb, head, offset + position.tokens - 1)
        out[n, head, query, key] = q[n, head, query].numpy() @ rows
    return out


def logits_2d(position, q):
    """`q_i . (W[x_j - x_i] + H[y_j - y_i])`, pair by pair."""
    height, width = position.h, position.w
    out = np.empty((*q.shape[:3], height * width))
    for n, head, query, key in np.ndindex(*out.shape):
        (y, x), (v, u) = divmod(query, width), divmod(key, width)
        along = row(position.emb_w.rel_pos_emb, head, u - x + width - 1)
        down = row(position.emb_h.rel_pos_emb, head, v - y + height - 1)
        out[n, head, query, key] = q[n, head, query].numpy() @ (along + down)
    return out


@per_head
@pytest.mark.parametrize("tokens", [1, 9])
def test_sequences_give_the_logits_of_each_pair(heads, tokens):
    position = RelPosEmb1D(tokens, 5, heads, dtype=torch.float64)
    q, _, _ = qkv(9, 9)
    assert_close(position(q), torch.from_numpy(logits_1d(position, q, 9)))


@per_head
@pytest.mark.parametrize("size", MAPS)
def test_maps_give_the_logits_of_each_pair(heads, size):
    position = RelPosEmb2D(size, 5, heads, dtype=torch.float64)
    q, _, _ = qkv(size[0] * size[1], 1)
    assert_close(position(q), torch.from_numpy(logits_2d(position, q)))


@pytest.mark.parametrize("tokens", [9, 12])
def test_absolute_positions_give_one_logit_each(tokens):
    position = AbsPosEmb1D(tokens, 5, dtype=torch.float64)
    q, _, _ = qkv(9, 1)
    assert_close(position(q), q @ position.abs_pos_emb.mT)


@per_head
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.costly(10)
def test_attention_to_a_sequence_adds_the_unscaled_logits(heads, lengths, scale):
    position = RelPosEmb1D(9, 5, heads, scale=scale, dtype=torch.float64)
    q, k, v = qkv(*lengths)
    _, _, terms = position(q, k)
    got = relpos.attention(q, k, v, terms, scale=scale)
    assert_close(got, judged(q, k, v, mask=logits_1d(position, q, lengths[1]), scale=scale))


@per_head
@pytest.mark.parametrize("size", MAPS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_on_a_map_adds_the_unscaled_logits(heads, size, scale):
    position = RelPosEmb2D(size, 5, heads, scale=scale, dtype=torch.float64)
    q, k, v = qkv(size[0] * size[1], size[0] * size[1])
    got = relpos.attention(q, k, v, position(q, k)[2], scale=scale)
    assert_close(got, judged(q, k, v, mask=logits_2d(position, q), scale=scale))


@pytest.mark.parametrize("lengths", [(9, 9), (4, 9), (5, 12)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_to_absolute_positions_adds_the_unscaled_logits(lengths, scale):
    position = AbsPosEmb1D(9, 5, scale=scale, dtype=torch.float64)
    q, k, v = qkv(*lengths, g=1)
    same, moved, terms = position(q, k)
    got = relpos.attention(same, moved, v, terms, scale=scale)
    rows = [min(n, 8) for n in range(lengths[1])]
    mask = (q @ position.abs_pos_emb[rows].mT).detach().numpy()
    assert_close(got, judged(q, k, v, mask=mask, scale=scale))


@pytest.mark.parametrize(
    "position",
    [AbsPosEmb1D(15, 5), RelPosEmb1D(15, 5), RelPosEmb2D((3, 5), 5, 2)],
    ids=lambda position: type(position).__name__,
)
def test_as_a_scheme_it_adds_the_logits_that_it_shows(position):
    position = copy.deepcopy(position).double()
    q, k, _ = qkv(15, 15)
    assert_close(position.logits(q, k), position(q))


def test_names_and_shapes_are_the_originals():
    def shapes(module):
        return {name: tuple(x.shape) for name, x in module.state_dict().items()}

    assert shapes(AbsPosEmb1D(7, 4)) == {"abs_pos_emb": (7, 4)}
    assert shapes(RelPosEmb1D(7, 4)) == {"rel_pos_emb": (13, 4)}
    assert shapes(RelPosEmb1D(tokens=7, dim_head=4, heads=3)) == {"rel_pos_emb": (3, 13, 4)}
    names = {"emb_w.rel_pos_emb": (5, 4), "emb_h.rel_pos_emb": (5, 4)}
    assert shapes(RelPosEmb2D(feat_map_size=(3, 3), dim_head=4)) == names


@pytest.mark.parametrize("assign", [False, True])
def test_one_table_saved_for_several_heads_serves_each(assign):
    """TRAPS 2: elsewhere `heads=n` never built a table per head."""
    shared = RelPosEmb1D(5, 4)
    position = RelPosEmb1D(5, 4, heads=3)
    position.load_state_dict(shared.state_dict(), assign=assign)
    q = normal(2, 3, 5, 4, dtype=torch.float32)
    assert_close(position(q), shared(q))
    position.rel_pos_emb.data[1] += 1
    changed = (position(q) != shared(q)).flatten(2).any(-1)
    assert changed.tolist() == [[False, True, False]] * 2


def test_shared_tables_of_a_map_serve_each_head_too():
    shared, position = RelPosEmb2D((3, 5), 4), RelPosEmb2D((3, 5), 4, heads=2)
    position.load_state_dict(shared.state_dict())
    q = normal(1, 2, 15, 4, dtype=torch.float32)
    assert_close(position(q), shared(q))


def test_tables_of_a_map_sized_by_the_other_side_are_exchanged():
    """TRAPS 2: elsewhere `emb_w` has `2 h - 1` rows."""
    position = RelPosEmb2D((3, 5), 4)
    saved = {"emb_w.rel_pos_emb": torch.randn(5, 4), "emb_h.rel_pos_emb": torch.randn(9, 4)}
    given = dict(saved)
    position.load_state_dict(given)
    assert torch.equal(position.emb_h.rel_pos_emb, saved["emb_w.rel_pos_emb"])
    assert torch.equal(position.emb_w.rel_pos_emb, saved["emb_h.rel_pos_emb"])
    assert given.keys() == saved.keys()
    assert all(given[name] is saved[name] for name in saved)


@pytest.mark.parametrize("size", [(3, 3), (3, 5)])
def test_tables_of_a_map_that_fit_go_by_their_names(size):
    position, other = (RelPosEmb2D(size, 4, 2) for _ in range(2))
    other.load_state_dict(position.state_dict())
    for name, rows in position.named_parameters():
        assert torch.equal(other.get_parameter(name), rows)


def test_tables_of_another_map_are_refused():
    saved = {"emb_w.rel_pos_emb": torch.randn(5, 4), "emb_h.rel_pos_emb": torch.randn(7, 4)}
    with pytest.raises(RuntimeError, match=r"size mismatch for emb_w"):
        RelPosEmb2D((3, 5), 4).load_state_dict(saved)
    with pytest.raises(RuntimeError, match="Missing key"):
        RelPosEmb2D((3, 5), 4).load_state_dict({"emb_w.rel_pos_emb": torch.randn(5, 4)})


def test_grouped_keys_on_a_map_use_the_tables_of_their_query_heads():
    position = RelPosEmb2D((3, 5), 5, 6, dtype=torch.float64)
    q, k, v = qkv(15, 15, h=6, g=2)
    got = relpos.attention(q, k, v, position(q, k)[2])
    assert_close(got, judged(q, k, v, mask=logits_2d(position, q)))


@pytest.mark.no_typecheck
def test_queries_that_do_not_fit_are_named():
    q, k, _ = (x.float() for x in qkv(6, 6))
    wrong = [
        (AbsPosEmb1D(6, 4), r"AbsPosEmb1D: q must be .* with d=4, got"),
        (RelPosEmb1D(6, 4), r"RelPosEmb1D: q must be .* with d=4, got"),
        (RelPosEmb1D(6, 5, 3), r"RelPosEmb1D: q must be .* with h=3, d=5, got"),
        (RelPosEmb2D((2, 4), 5), r"RelPosEmb2D: q must be .* with i=8, d=5, got"),
        (RelPosEmb2D((2, 3), 5, 3), r"RelPosEmb2D: q must be .* with h=3, i=6, d=5, got"),
    ]
    for position, named in wrong:
        with pytest.raises(relpos.ShapeError, match=named):
            position(q)
        with pytest.raises(relpos.ShapeError, match=named):
            position(q, k)
    with pytest.raises(relpos.ShapeError, match=r"RelPosEmb2D: k must be .* with j=6, d=5, got"):
        RelPosEmb2D((2, 3), 5)(q, k[:, :, :4])


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: AbsPosEmb1D(0, 4), "AbsPosEmb1D: tokens must be an integer >= 1, got 0"),
        (lambda: AbsPosEmb1D(4, 0), "AbsPosEmb1D: dim_head must be an integer >= 1, got 0"),
        (lambda: AbsPosEmb1D(4, 4, scale=0.0), "AbsPosEmb1D: scale must be a positive number"),
        (lambda: RelPosEmb1D(0, 4), "RelPosEmb1D: tokens must be an integer >= 1, got 0"),
        (lambda: RelPosEmb1D(4, 0), "RelPosEmb1D: dim_head must be an integer >= 1, got 0"),
        (lambda: RelPosEmb1D(4, 4, 0), "RelPosEmb1D: heads must be an integer >= 1, got 0"),
        (lambda: RelPosEmb1D(4, 4, scale=-2.0), "RelPosEmb1D: scale must be a positive number"),
        (lambda: RelPosEmb2D((0, 4), 4), "RelPosEmb2D: feat_map_size must be an integer >= 1"),
        (lambda: RelPosEmb2D((4,), 4), r"RelPosEmb2D: feat_map_size must be \(height, width\)"),
        (lambda: RelPosEmb2D(4, 4), r"RelPosEmb2D: feat_map_size must be \(height, width\)"),
        (lambda: RelPosEmb2D((4, 4), 0), "RelPosEmb2D: dim_head must be an integer >= 1, got 0"),
        (lambda: RelPosEmb2D((4, 4), 4, 0), "RelPosEmb2D: heads must be an integer >= 1, got 0"),
        (lambda: RelPosEmb2D((4, 4), 4, scale=0.0), "RelPosEmb2D: scale must be a positive"),
    ],
)
def test_bad_sizes_are_named(build, named):
    with pytest.raises(ValueError, match=named):
        build()


@pytest.mark.no_typecheck
def test_numbers_that_are_no_tables_are_named_when_they_are_loaded():
    names = ("emb_w.rel_pos_emb", "emb_h.rel_pos_emb")
    for size in ((5, 7), (3, 3)):
        with pytest.raises(RuntimeError, match=r"size mismatch for emb_w.rel_pos_emb"):
            RelPosEmb2D(size, 4).load_state_dict({name: torch.zeros(()) for name in names})
    with pytest.raises(RuntimeError, match="size mismatch for rel_pos_emb"):
        RelPosEmb1D(5, 4).load_state_dict({"rel_pos_emb": torch.zeros(())})


def test_keys_of_another_dtype_are_named():
    q = torch.zeros(1, 2, 5, 4, dtype=torch.bfloat16)
    with pytest.raises(relpos.ShapeError, match=r"AbsPosEmb1D: k must be torch.float32 on cpu as"):
        AbsPosEmb1D(5, 4)(q, q)
