"""`Grid`: keys and values per axis, prefix, pooled queries, resized rows."""

import copy
import pickle
from math import prod

import pytest
import torch
from torch.nn.functional import interpolate
from torch.testing import assert_close

import relpos
from relpos import definition
from relpos.positions import Grid
from tests.factories import normal, table

SHAPES = [(5, 7), (1, 9), (9,), (3, 4, 5), (1, 1)]


def tokens(shape, *, h=2, g=None, d=6, prefix=0, seed=0):
    g = h if g is None else g
    return [
        normal(1, n, prefix + prod(shape), d, seed=seed + part) for part, n in enumerate((h, g, g))
    ]


def attended(position, q, k, v, **shapes):
    return relpos.attention(q, k, v, position(q, k, **shapes)[2])


def judged(q, k, v, axes, **arguments):
    """The double loop's output; `axes` hold the tables by name."""
    output, _ = definition.grid_attention(
        *(x.numpy() for x in (q, k, v)),
        axes=[definition.Axis(**tables) for tables in axes],
        **arguments,
    )
    return torch.from_numpy(output)


def keys_of(position, scale=1.0):
    return [{"keys": table(rows * scale, -(rows.shape[1] // 2))} for rows in position.keys]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("prefix", [0, 1])
def test_attention_equals_the_double_loop(shape, heads, prefix):
    position = Grid(6, shape, heads, prefix=prefix, dtype=torch.float64)
    assert [rows.shape for rows in position.keys] == [(heads, 2 * n - 1, 6) for n in shape]
    q, k, v = tokens(shape, prefix=prefix)
    want = judged(q, k, v, keys_of(position), shape=shape, prefix=prefix)
    assert_close(attended(position, q, k, v), want)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("shape", [(3, 5), (4, 4)])
def test_values_equal_the_double_loop(shape, heads):
    position = Grid(6, shape, heads, values=True, dtype=torch.float64)
    q, k, v = tokens(shape)
    axes = keys_of(position)
    for axis, rows in zip(axes, position.values, strict=True):
        axis["values"] = table(rows, -(rows.shape[1] // 2))
    assert_close(attended(position, q, k, v), judged(q, k, v, axes, shape=shape))


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 5)])
def test_unscaled_rows_are_added_as_they_are(shape):
    position = Grid(6, shape, scaled=False, dtype=torch.float64)
    q, k, v = tokens(shape)
    assert_close(
        attended(position, q, k, v), judged(q, k, v, keys_of(position, 6**0.5), shape=shape)
    )


def test_unscaled_rows_start_as_small_in_the_scores():
    scaled, unscaled = (Grid(64, (99, 99), scaled=scaled) for scaled in (True, False))
    ratio = scaled.keys[0].square().mean() / unscaled.keys[0].square().mean()
    assert_close(ratio.item(), 64.0, rtol=0.1, atol=0)


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 4)])
def test_concatenated_rows_are_dotted_with_their_part_of_the_query(shape):
    """Ramachandran et al. 2019, eq. 3: q . concat(row, column), written out."""
    n = len(shape)
    position = Grid(6, shape, concatenated=True, dtype=torch.float64)
    q, k, _ = tokens(shape)
    got = position.logits(q, k, scale=1.0).reshape(1, 2, *shape, *shape)
    for pair in (torch.zeros(2 * n, dtype=torch.int64), torch.tensor([n - 1 for n in shape * 2])):
        pair[-1] = 1
        i, j = pair[:n].tolist(), pair[n:].tolist()
        rows = [
            keys[0, at_key - at_query + size - 1]
            for keys, at_key, at_query, size in zip(position.keys, j, i, shape, strict=True)
        ]
        query = q.reshape(1, 2, *shape, 6)[(slice(None), slice(None), *i)]
        assert_close(got[(slice(None), slice(None), *i, *j)], query @ torch.cat(rows))


@pytest.mark.parametrize(
    ("shape", "query_shape"),
    [((4, 6), (2, 3)), ((5, 7), (3, 4)), ((3, 2), (6, 5)), ((6, 2), (4, 5))],
)
@pytest.mark.parametrize("at_call", [False, True])
def test_pooled_queries_equal_the_double_loop(shape, query_shape, at_call):
    """TRAPS 17: offsets between two rows are interpolated and not cut."""
    finest = tuple(map(max, shape, query_shape))
    sizes = {"shape": shape, "query_shape": query_shape}
    position = Grid(6, finest, prefix=1, dtype=torch.float64)
    if not at_call:
        position = Grid(6, **sizes, prefix=1, dtype=torch.float64)
    assert [rows.shape[1] for rows in position.keys] == [2 * n - 1 for n in finest]
    q, _, _ = tokens(query_shape, prefix=1)
    _, k, v = tokens(shape, prefix=1, seed=3)
    got = attended(position, q, k, v, **(sizes if at_call else {}))
    assert_close(got, judged(q, k, v, keys_of(position), **sizes, prefix=1))


@pytest.mark.parametrize(
    ("made", "called"),
    [((5, 7), (7, 5)), ((4, 4), (3, 9)), ((1, 9), (4, 4)), ((2, 2, 2), (3, 1, 4))],
)
def test_another_grid_uses_rows_resized_as_checkpoints_are(made, called):
    """TRAPS 17: also where neither grid is square."""
    position = Grid(6, made, 2, dtype=torch.float64)
    q, k, v = tokens(called)
    axes = []
    for rows, size in zip(position.keys, called, strict=True):
        resized = interpolate(rows.mT, size=2 * size - 1, mode="linear").mT
        axes.append({"keys": table(resized, 1 - size)})
    got = attended(position, q, k, v, shape=called)
    assert_close(got, judged(q, k, v, axes, shape=called))


def test_without_resizing_rows_keep_their_offsets_and_the_ends_clamp():
    position = Grid(6, (3, 4), resize=False, dtype=torch.float64)
    for called in ((2, 7), (6, 3), (3, 4)):
        q, k, v = tokens(called)
        got = attended(position, q, k, v, shape=called)
        assert_close(got, judged(q, k, v, keys_of(position), shape=called))


def test_one_axis_equals_the_bidirectional_scheme():
    line, grid = relpos.positions.Bidirectional(6, 9), Grid(6, (9,))
    grid.keys[0].data = line.keys.data
    q, k, v = (x.float() for x in tokens((9,)))
    assert_close(attended(grid, q, k, v), attended(line, q, k, v))


def test_logits_are_what_the_scheme_adds():
    position = Grid(6, (3, 5), prefix=1, dtype=torch.float64)
    q, k, _ = tokens((3, 5), prefix=1)
    weights = relpos.attention_weights(q, k, position(q, k)[2])
    scores = q @ k.mT / 6**0.5 + position.logits(q, k)
    assert_close(scores.softmax(-1), weights)
    assert (position.logits(q, k)[:, :, 0] == 0).all()
    assert (position.logits(q, k)[..., 0] == 0).all()


@pytest.mark.parametrize("options", [{}, {"concatenated": True}, {"resize": False}])
def test_all_rows_receive_gradients_on_their_own_grid_and_on_others(options):
    position = Grid(6, (3, 4), 2, values=True, dtype=torch.float64, **options)
    for shape in ((3, 4), (4, 5)):
        q, k, v = tokens(shape)
        attended(position, q, k, v, shape=shape).square().sum().backward()
        for rows in position.parameters():
            assert (rows.grad.abs().sum((0, 2)) > 0).all()
        position.zero_grad()


def test_rows_start_symmetric_around_zero_with_unit_length():
    position = Grid(64, (100, 120), 4, values=True)
    for rows in position.parameters():
        assert abs(rows.mean()) < 0.003
        assert_close(rows.square().sum(-1).mean(), torch.tensor(1.0), rtol=0.02, atol=0)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_agree_and_share_nothing(clone):
    position = Grid(6, (3, 4), values=True)
    other = clone(position)
    assert repr(other) == repr(position)
    for rows, others in zip(position.parameters(), other.parameters(), strict=True):
        assert torch.equal(rows, others)
        assert rows.data_ptr() != others.data_ptr()


def test_a_state_dict_goes_round():
    position, other = Grid(6, (3, 4), 2), Grid(6, (3, 4), 2)
    assert list(position.state_dict()) == ["keys.0", "keys.1"]
    other.load_state_dict(position.state_dict())
    assert all(map(torch.equal, position.parameters(), other.parameters()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_and_device_are_taken(dtype):
    position = Grid(6, (3, 4), values=True, device="meta", dtype=dtype)
    assert {rows.dtype for rows in position.parameters()} == {dtype}
    assert {rows.device.type for rows in position.parameters()} == {"meta"}


def test_repr_tells_what_is_unusual():
    assert Grid(6, (3, 4)).extra_repr() == "head_dim=6, shape=(3, 4), heads=1"
    position = Grid(6, (3, 4), scaled=False, query_shape=(3, 2), prefix=1, resize=False)
    assert position.extra_repr().endswith(
        "scaled=False, query_shape=(3, 2), prefix=1, resize=False"
    )


class OnMap(torch.nn.Module):
    """Attention whose grid is read from the tensor, as a layer over feature maps does."""

    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, x):
        q = x.flatten(-2).mT
        return relpos.attention(q, q, q, self.position(q, q, shape=x.shape[-2:])[2])


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_without_resizing_compiles_without_a_graph_break_on_any_grid():
    module = OnMap(Grid(6, (5, 7), resize=False))
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for shape in ((4, 6), (5, 7), (3, 9)):
        results = []
        for run in (module, compiled):
            x = normal(1, 2, 6, *shape, dtype=torch.float32).requires_grad_()
            module.zero_grad()
            output = run(x)
            output.square().sum().backward()
            results.append([output, x.grad, *(rows.grad for rows in module.parameters())])
        assert_close(*results)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"head_dim": 0}, "head_dim must be an integer >= 1, got 0"),
        ({"heads": 0}, "heads must be an integer >= 1, got 0"),
        ({"prefix": -1}, "prefix must be an integer >= 0, got -1"),
        ({"shape": ()}, r"shape must be one size per axis, got \(\)"),
        ({"shape": 7}, "shape must be one size per axis, got 7"),
        ({"shape": (5, 0)}, "shape must be an integer >= 1, got 0"),
        ({"query_shape": (5,)}, r"query_shape must be one size per axis, 2 in all, got \(5,\)"),
        (
            {"head_dim": 5, "concatenated": True},
            "head_dim must be a multiple of the 2 axes if they are concatenated, got 5",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=f"Grid: {words}"):
        Grid(**{"head_dim": 6, "shape": (5, 7)} | arguments)


@pytest.mark.no_typecheck
def test_tokens_that_do_not_fit_are_named():
    position = Grid(6, (5, 7), 2)
    q, k, _ = tokens((5, 7))
    with pytest.raises(relpos.ShapeError, match=r"Grid: q must be .* with h=2, i=35, d=6, got"):
        position(q[..., :4], k)
    with pytest.raises(relpos.ShapeError, match=r"Grid: q must be .* with h=2, i=35, d=6, got"):
        position(torch.cat((q, q), 1), k)
    with pytest.raises(relpos.ShapeError, match=r"Grid: k must be .* with j=35, d=6, got"):
        position(q, k[..., :4])
    with pytest.raises(ValueError, match="Grid: shape must be one size per axis, 2 in all, got"):
        position(q, k, shape=(35,))
    with pytest.raises(relpos.ShapeError, match=r"Grid: q must be .* with h=2, i=20, d=6, got"):
        position(q, k, shape=(4, 5))
    with pytest.raises(relpos.ShapeError, match=r"Grid: k must be .* with j=20, d=6, got"):
        position(q, k, shape=(4, 5), query_shape=(5, 7))
