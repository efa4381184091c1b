"""The rows that are drawn are those of the tables, at their offsets, for every scheme."""

import numpy as np
import pytest
import torch

import relpos
from relpos.plots import SCHEMES, Sizes, effect_of, initial, rows_of
from relpos.positions import Alibi, Shaw, T5Bias, WindowBias

SIZES = {"length": 7, "heads": 2, "head_dim": 4}


def test_rows_are_those_of_the_tables_by_their_offsets():
    position = Shaw(4, (3, 1))
    keys, values = rows_of(position, **SIZES)
    assert (keys.name, keys.first, keys.last) == ("keys", -3, 1)
    assert (values.name, values.first, values.last) == ("values", -3, 1)
    np.testing.assert_array_equal(keys.values, position.keys[0].detach())
    np.testing.assert_array_equal(values.values, position.values[0].detach())


def test_biases_are_numbers_of_each_head():
    rows = rows_of(Alibi(2), **SIZES)
    assert [one.name for one in rows] == ["bias, head 1", "bias, head 2"]
    for one, slope in zip(rows, Alibi(2).slopes, strict=True):
        at = np.arange(one.first, one.last + 1)
        np.testing.assert_allclose(one.values, -slope.item() * np.abs(at))


def test_a_windows_numbers_lie_by_both_offsets():
    position = WindowBias(2, (2, 3))
    rows = rows_of(position, length=6, heads=2, head_dim=4)
    assert [one.name for one in rows] == ["joint bias, head 1", "joint bias, head 2"]
    assert all(one.joint_bias and one.values.shape == (3, 5) for one in rows)
    np.testing.assert_array_equal(rows[1].values, position.joint_bias[1].detach())


def test_absolute_rows_lie_by_position():
    for name in ("absolute", "sinusoidal", "absolute-keys", "abs-pos-emb-1d"):
        (rows,) = rows_of(initial(name, Sizes(7, 2, 4))[0], **SIZES)
        assert (rows.first, rows.last, rows.relative) == (0, 6, False), name


def test_added_rows_are_found_whatever_the_keys_are():
    position, _ = initial("absolute-keys", Sizes(7, 2, 4))
    (rows,) = rows_of(position, **SIZES)
    np.testing.assert_array_equal(rows.values, position.rows.detach())


def test_the_effect_is_what_attention_adds_to_the_scores():
    position = Shaw(4, 2)
    effect = effect_of(position, **SIZES)
    at = (torch.arange(7) - torch.arange(7)[:, None]).clamp(-2, 2) + 2
    # The queries are those that give the diagonal its numbers, whatever they are.
    _, other = effect_of(position, **SIZES, seed=1), effect_of(position, **SIZES)
    np.testing.assert_array_equal(effect, other)
    for head in effect:
        for query in range(7):
            by_row = {}
            for key in range(7):
                by_row.setdefault(int(at[query, key]), set()).add(float(head[query, key]))
            assert all(len(found) == 1 for found in by_row.values())
    bias = T5Bias(2)
    np.testing.assert_allclose(effect_of(bias, **SIZES), bias.dense(7).detach(), atol=1e-6)


def test_the_effect_is_on_the_scale_that_the_scheme_has():
    position, _ = initial("deberta", Sizes(7, 2, 4))
    assert position.attention_scale == pytest.approx(1 / 12**0.5)
    ratio = effect_of(position, **SIZES)
    position.attention_scale = 1.0
    np.testing.assert_allclose(effect_of(position, **SIZES), ratio * 12**0.5, rtol=1e-5)


def test_queries_are_not_the_rows_that_the_same_seed_drew():
    """Else a row's own query would stand out in the picture, by chance of the seed alone."""
    position, _ = initial("huang", Sizes(48, 1, 32), seed=0)
    effect = effect_of(position, length=48, heads=1, head_dim=32, seed=0)
    assert np.abs(effect).max() < 6 * effect.std()


def test_only_schemes_act_on_scores():
    with pytest.raises(TypeError, match="effect_of: position must be a Position, got Linear"):
        effect_of(torch.nn.Linear(2, 2), **SIZES)


@pytest.mark.parametrize("sizes", [Sizes(1, 1, 1), Sizes(5, 3, 3), Sizes(33, 1, 4)])
@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_take_any_size(name, sizes):
    # What is turned in pairs has room for them.
    pairs = {"rotary": 2, "xpos": 2, "axial-rotary": 4}.get(name, 1)
    sizes = Sizes(sizes.length, sizes.heads, -(-sizes.head_dim // pairs) * pairs)
    position, _ = initial(name, sizes, seed=1)
    given = {"length": sizes.length, "heads": sizes.heads, "head_dim": sizes.head_dim}
    assert bool(rows_of(position, **given)) == (name not in {"none", "axial-rotary"})
    if isinstance(position, relpos.positions.Position):
        assert np.isfinite(effect_of(position, **given)).all()


def test_turned_queries_are_shown_by_the_score_of_ones_at_each_offset():
    for name in ("rotary", "xpos"):
        position, _ = initial(name, Sizes(7, 2, 4))
        (rows,) = rows_of(position, **SIZES)
        assert (rows.first, rows.last, rows.values.shape) == (-6, 6, (13,))
        assert rows.values[6] == pytest.approx(1)
        # Its picture has the same number along each diagonal, unlike that of random queries.
        effect = effect_of(position, **SIZES)[0]
        for offset in range(-6, 7):
            added = 4**0.5 * (rows.values[offset + 6] - 1)
            np.testing.assert_allclose(effect.diagonal(offset), added, atol=1e-5)
    turns = np.cos(np.arange(-6, 7)) + np.cos(0.01 * np.arange(-6, 7))
    (rows,) = rows_of(initial("rotary", Sizes(7, 2, 4))[0], **SIZES)
    np.testing.assert_allclose(rows.values, turns / 2, atol=1e-6)


def test_a_width_without_pairs_is_refused_in_words():
    with pytest.raises(ValueError, match="Rotary: rotary_dim must be even and at most head_dim=3"):
        initial("rotary", Sizes(7, 2, 3))


def test_a_seed_gives_the_same_scheme_and_leaves_the_users_draws_alone():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    one, other = (initial("shaw", Sizes(), seed=2)[0] for _ in range(2))
    assert torch.equal(torch.randn(3), expected)
    assert torch.equal(one.keys, other.keys)
    assert not torch.equal(one.keys, initial("shaw", Sizes(), seed=3)[0].keys)


def test_the_grid_has_as_many_cells_as_there_are_tokens():
    for length in (1, 7, 12, 48, 49):
        height, width = Sizes(length).grid
        assert height * width == length
        assert height <= width


@pytest.mark.no_typecheck
def test_sizes_and_names_are_checked():
    with pytest.raises(ValueError, match="Sizes: heads must be an integer >= 1, got 0"):
        Sizes(heads=0)
    with pytest.raises(ValueError, match=r"initial: name must be one of abs-.*, got 'rotari'"):
        initial("rotari", Sizes())


def test_every_scheme_has_a_name():
    known = {type(initial(name, Sizes())[0]) for name in SCHEMES}
    packages = (relpos.positions, relpos.adapters)
    exported = {getattr(package, name) for package in packages for name in package.__all__}
    bases = {relpos.positions.Position, relpos.positions.BiasPosition}
    schemes = {
        one for one in exported - bases
        if isinstance(one, type) and issubclass(one, relpos.positions.Position)
    }  # fmt: skip
    assert schemes <= known
