"""Layers with a window, a softcap, and ranges of keys: what a mask of all pairs says."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos import attention, intersect_ranges, neighborhood_ranges
from relpos.layers import DecoderBlock, EncoderBlock, GridAttention, MultiheadAttention
from relpos.positions import AxialRotary, Grid, Rotary, Shaw, WindowBias
from tests.factories import normal

POSITIONS = {"none": lambda: None, "shaw": lambda: Shaw(4, 3, 3), "rotary": lambda: Rotary(4)}
each_position = pytest.mark.parametrize("position", POSITIONS.values(), ids=list(POSITIONS))
each_window = pytest.mark.parametrize("window", [(4, 0), (2, 3), (None, 1), (0, None), (90, 90)])


SHAW = POSITIONS["shaw"]


def layer_of(position=POSITIONS["none"], **arguments):
    torch.manual_seed(0)
    return MultiheadAttention(12, 3, position=position(), **arguments).double()


def hidden(i, window, j=None):
    """True where a pair of i queries, the last of j, does not take part: torch's convention."""
    j = j or i
    offset = torch.arange(j) - torch.arange(j - i, j)[:, None]
    left, right = (j if side is None else side for side in window)
    return (offset < -left) | (offset > right)


@each_position
@each_window
@pytest.mark.parametrize("i", [5, 33])
def test_a_window_equals_torchs_mask_of_pairs_weights_included(position, window, i):
    local, full = layer_of(position, window=window), layer_of(position)
    query, memory = normal(2, i, 12), normal(2, 33, 12, seed=1)
    want = full(query, memory, memory, attn_mask=hidden(i, window, 33))
    assert_close(local(query, memory, memory), want)
    assert local(query, memory, memory, need_weights=False)[1] is None


def test_a_window_goes_with_every_other_way_of_hiding_keys():
    local, full, x = layer_of(SHAW, window=(9, 4)), layer_of(SHAW), normal(2, 33, 12)
    documents = torch.arange(33)[None] // 20
    ranges = relpos.chunk_ranges(33, 8, left_chunks=1)
    pads = torch.arange(33) >= torch.tensor([[33], [27]])
    added = normal(33, 33, seed=2)
    keys = torch.arange(33)
    outside = (keys < ranges[0, :, :1]) | (keys >= ranges[0, :, 1:])
    mask = hidden(33, (9, 4)) | outside | (documents[0, :, None] != documents[0])
    want = full(x, x, x, pads, attn_mask=added.masked_fill(mask, -torch.inf), is_causal=True)
    others = {"documents": documents, "key_ranges": ranges, "attn_mask": added}
    assert_close(local(x, x, x, pads, is_causal=True, **others), want)


def test_ranges_of_one_sequence_need_no_batch():
    layer, x, ranges = layer_of(), normal(9, 12), relpos.chunk_ranges(9, 4, left_chunks=0)
    want = layer(x[None], x[None], x[None], key_ranges=ranges)[0][0]
    assert_close(layer(x, x, x, key_ranges=ranges[0])[0], want)
    assert_close(layer(x, x, x, key_ranges=ranges)[0], want)


def test_a_softcap_bounds_the_scores():
    layer, x = layer_of(softcap=0.5), 20 * normal(2, 9, 12)
    q, k, _ = (
        part.unflatten(-1, (3, 4)).transpose(1, 2)
        for part in (x @ layer.in_proj_weight.mT).chunk(3, -1)
    )
    scores = 0.5 * torch.tanh(q @ k.mT / 2 / 0.5)
    assert_close(layer(x, x, x, average_attn_weights=False)[1], scores.softmax(-1))


def test_dropped_weights_are_of_the_window():
    layer = layer_of(SHAW, window=(3, 2), dropout=0.4).train()
    x = normal(1, 20, 12).requires_grad_()
    outputs = [layer(x, x, x, need_weights=False)[0] for _ in range(2)]
    assert not torch.equal(*outputs)
    (found,) = torch.autograd.grad(outputs[0][0, 9].sum(), x)
    seen = found[0].abs().sum(-1) > 0
    assert not seen[:6].any()
    assert not seen[12:].any()
    assert seen[9]


def test_gradients_reach_every_parameter():
    layer, x = layer_of(SHAW, window=(4, 1), softcap=3.0), normal(2, 20, 12)
    layer(x, x, x, need_weights=False)[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("made", [EncoderBlock, DecoderBlock])
def test_a_block_has_the_window_of_its_attention_and_takes_ranges(made):
    layer, x = layer_of(SHAW, window=(4, 1)), normal(2, 20, 12)
    block, ranges = made(layer).double(), relpos.chunk_ranges(20, 6, left_chunks=0)
    y, causal = block.attention_norm(x), made is DecoderBlock
    x_ = x + layer(y, y, y, is_causal=causal, key_ranges=ranges)[0]
    assert_close(block(x, key_ranges=ranges), x_ + block.mlp(block.mlp_norm(x_)))
    changed = x.clone()
    changed[:, :6] = 0
    assert_close(block(changed, key_ranges=ranges)[:, 6:], block(x, key_ranges=ranges)[:, 6:])


def test_the_arguments_are_told():
    assert "window=(4, None), softcap=30" in repr(layer_of(window=(4, None), softcap=30.0))
    assert "window" not in repr(layer_of(window=(None, None)))
    grid = GridAttention(12, 3, window=[(1, 2), None], softcap=2.0)
    assert "window=((1, 2), (None, None)), softcap=2" in repr(grid)
    assert "neighborhood=(3, None)" in repr(GridAttention(12, 3, neighborhood=[3, None]))
    assert "neighborhood" not in repr(GridAttention(12, 3, neighborhood=(None, None)))


GRIDS = {
    "none": lambda: None,
    "grid": lambda: Grid(4, (5, 7)),
    "window bias": lambda: WindowBias(3, (5, 7)),
    "axial rotary": lambda: AxialRotary(4, (5, 7)),
}


def grid_of(position=None, **arguments):
    torch.manual_seed(0)
    return GridAttention(12, 3, position=position, **arguments).double()


@pytest.mark.parametrize("position", GRIDS.values(), ids=list(GRIDS))
@pytest.mark.parametrize("window", [((1, 1), (2, 0)), (None, (3, 3)), ((0, None), (None, 0))])
def test_a_map_sees_its_neighbourhood_alone(position, window):
    x = normal(1, 12, 5, 7).requires_grad_()
    got = grid_of(position(), window=window)(x)
    rows, columns = (
        torch.ones(n, n, dtype=torch.bool) if sides is None else ~hidden(n, sides)
        for n, sides in zip((5, 7), window, strict=True)
    )
    for row, column in ((0, 0), (2, 3), (4, 6)):
        (found,) = torch.autograd.grad(got[0, :, row, column].sum(), x, retain_graph=True)
        seen = found[0].abs().sum(0) > 0
        assert torch.equal(seen, rows[row, :, None] & columns[column])


@pytest.mark.parametrize("position", GRIDS.values(), ids=list(GRIDS))
@pytest.mark.parametrize("sizes", [3, (2, 5), (None, 3), (9, 1)])
def test_a_map_s_neighbourhoods_move_inward(position, sizes):
    x = normal(1, 12, 5, 7).requires_grad_()
    got = grid_of(position(), neighborhood=sizes)(x)
    of_axes = (sizes, sizes) if isinstance(sizes, int) else sizes
    for row, column in ((0, 0), (2, 3), (4, 6), (1, 5)):
        (found,) = torch.autograd.grad(got[0, :, row, column].sum(), x, retain_graph=True)
        seen = found[0].abs().sum(0) > 0
        wanted = torch.zeros(5, 7, dtype=torch.bool)
        (first, end), (left, right) = (
            (0, n) if size is None else neighborhood_ranges(n, size)[0, at].tolist()
            for n, size, at in zip((5, 7), of_axes, (row, column), strict=True)
        )
        wanted[first:end, left:right] = True
        assert torch.equal(seen, wanted)


def test_neighbourhoods_and_windows_go_together():
    x, position = normal(2, 12, 5, 7), Grid(4, (5, 7))
    both = grid_of(position, neighborhood=3, window=((0, None), (None, 0)))(x)
    ranges = [
        intersect_ranges(neighborhood_ranges(n, 3), of_window)
        for n, of_window in (
            (5, torch.stack([torch.arange(5), torch.full((5,), 5)], -1)[None]),
            (7, torch.stack([torch.zeros(7).long(), torch.arange(7) + 1], -1)[None]),
        )
    ]
    layer = grid_of(position)
    q, k, v = (
        part.unflatten(-1, (3, 4)).transpose(1, 2)
        for part in layer.in_proj(x.flatten(2).mT).chunk(3, -1)
    )
    q, k, terms = position(q, k, shape=(5, 7))
    heads = attention(q, k, v, terms, key_ranges=ranges)
    want = layer.out_proj(heads.transpose(1, 2).flatten(2)).mT.unflatten(2, (5, 7))
    assert_close(both, want)


@pytest.mark.parametrize("window", [((1, 2), (3, 0)), ((1, 1), None)])
def test_a_line_of_a_map_s_tokens_has_a_window_for_each_axis(window):
    x = normal(2, 35, 12)
    line = layer_of(lambda: Grid(4, (5, 7)), window=window)
    mask = torch.stack([
        (~hidden(5, window[0]))[:, None, :, None].expand(5, 7, 5, 7),
        torch.ones(5, 7, 5, 7, dtype=torch.bool) if window[1] is None
        else (~hidden(7, window[1]))[None, :, None, :].expand(5, 7, 5, 7),
    ]).all(0).reshape(35, 35)  # fmt: skip
    got, weights = line(x, x, x)
    line.window = None
    want, want_weights = line(x, x, x, attn_mask=~mask)
    assert_close(got, want)
    assert_close(weights, want_weights)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_line_of_a_map_s_tokens_has_ranges_for_each_axis(need_weights):
    x = normal(2, 35, 12)
    layer = layer_of(lambda: Grid(4, (5, 7)))
    ranges = [neighborhood_ranges(5, 3), neighborhood_ranges(7, 5)]
    mask = (
        (of_rows := outside(ranges[0], 5))[:, None, :, None] | outside(ranges[1], 7)[:, None]
    ).reshape(35, 35)
    assert of_rows.any()
    got, weights = layer(x, x, x, key_ranges=ranges, need_weights=need_weights)
    want, want_weights = layer(x, x, x, attn_mask=mask, need_weights=need_weights)
    assert_close(got, want)
    assert_close(weights, want_weights)
    for of_one in (ranges, [one[0] for one in ranges], [ranges[0], ranges[1][0]]):
        assert_close(layer(x[0], x[0], x[0], key_ranges=of_one)[0], want[0])
    block = EncoderBlock(layer)
    assert not torch.equal(block(x, key_ranges=ranges), block(x))


def outside(ranges, keys):
    return (torch.arange(keys) < ranges[0, :, :1]) | (torch.arange(keys) >= ranges[0, :, 1:])


def test_a_window_for_each_axis_without_a_grid_is_named():
    x = torch.zeros(1, 35, 12)
    layer = MultiheadAttention(12, 3, position=Shaw(4, 3), window=((1, 1), None))
    with pytest.raises(ValueError, match=r"with a position that has no tables .* and Shaw"):
        layer(x, x, x)
    layer = MultiheadAttention(12, 3, position=Grid(4, (5, 7)), window=(3, 3))
    with pytest.raises(ValueError, match=r"for each axis of the grid \(5, 7\), got \(3, 3\)"):
        layer(x, x, x)


@pytest.mark.parametrize("window", [(None,), (None, None), (None, None, None)])
def test_a_window_without_any_limit_is_none(window):
    assert MultiheadAttention(12, 3, window=window).window is None
    assert GridAttention(12, 3, window=window).window is None


def test_a_neighbourhood_as_large_as_the_map_is_the_map():
    x, position = normal(2, 12, 5, 7), Grid(4, (5, 7))
    want = grid_of(position)(x)
    # The same seed draws the same projections.
    assert_close(grid_of(position, window=((4, 4), (6, 6)))(x), want)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("window", "words"),
    [
        (5, r"window must be \(left, right\) in tokens, None for no limit, got 5"),
        ((-1, 0), r"window\[0\] must be an integer >= 0, or None for no limit, got -1"),
        ((3, -2), r"window\[1\] must be an integer >= 0, or None for no limit, got -2"),
        ((3, 1.5), r"window\[1\] must be an integer >= 0, got 1.5"),
    ],
)
def test_windows_of_other_conventions_are_named(window, words):
    with pytest.raises(ValueError, match=f"MultiheadAttention: {words}"):
        MultiheadAttention(12, 3, window=window)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("window", "words"),
    [
        (7, r"window must have one \(left, right\) or None for each axis of the map, got 7"),
        ((3, 3), r"window must have one .* for each axis of the map, got \(3, 3\)"),
        (
            ((-1, 1), None),
            r"window\[0\]\[0\] must be an integer >= 0, or None for no limit, got -1",
        ),
    ],
)
def test_windows_that_are_not_of_a_map_are_named(window, words):
    with pytest.raises(ValueError, match=f"GridAttention: {words}"):
        GridAttention(12, 3, window=window)


def test_windows_that_do_not_go_with_the_map_are_named():
    x = torch.zeros(1, 12, 5, 7)
    with pytest.raises(ValueError, match=r"for each axis of the grid \(5, 7\), got"):
        GridAttention(12, 3, window=((1, 1),))(x)
    with pytest.raises(ValueError, match="GridAttention: position must be made for a grid"):
        GridAttention(12, 3, window=((1, 1), None), position=Shaw(4, 3))(x)
    with pytest.raises(ValueError, match="GridAttention: window must be None where query_pool"):
        GridAttention(12, 3, window=((1, 1), None), query_pool=torch.nn.AvgPool2d(2))


def test_neighbourhoods_that_do_not_go_with_the_map_are_named():
    x = torch.zeros(1, 12, 5, 7)
    with pytest.raises(ValueError, match=r"neighborhood must have .* grid \(5, 7\), got \(3,"):
        GridAttention(12, 3, neighborhood=(3,))(x)
    with pytest.raises(ValueError, match="GridAttention: position must be made for a grid"):
        GridAttention(12, 3, neighborhood=3, position=Shaw(4, 3))(x)
    with pytest.raises(ValueError, match="neighborhood must be None where query_pool"):
        GridAttention(12, 3, neighborhood=3, query_pool=torch.nn.AvgPool2d(2))


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (0, "neighborhood must be an integer >= 1, got 0"),
        ((3, -1), r"neighborhood\[1\] must be an integer >= 1, got -1"),
        (2.5, "neighborhood must be an integer >= 1, got 2.5"),
        ((), r"neighborhood must have a size or None for each axis of the map, got \(\)"),
        ("3", "neighborhood must have a size or None for each axis of the map, got '3'"),
    ],
)
def test_neighbourhoods_that_are_no_sizes_are_named(sizes, words):
    with pytest.raises(ValueError, match=f"GridAttention: {words}"):
        GridAttention(12, 3, neighborhood=sizes)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("softcap", [0.0, -1.0, float("nan"), "1"])
@pytest.mark.parametrize("layer", [MultiheadAttention, GridAttention])
def test_a_softcap_that_is_no_positive_number_is_named(layer, softcap):
    with pytest.raises((ValueError, TypeError), match=f"{layer.__name__}: softcap must be"):
        layer(12, 3, softcap=softcap)
