"""Attention on feature maps against the double loop: pooled queries, resizing, other schemes."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d
from torch.testing import assert_close

import relpos
from relpos import definition
from relpos.layers import GridAttention
from relpos.positions import Grid, RelativeLogits, Shaw, WindowBias
from tests.factories import normal, table

GRIDS = [(5, 7), (1, 9), (6,), (2, 3, 4)]


def made(position=None, **arguments):
    layer = GridAttention(12, 2, position=position, **arguments).double().eval()
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=100 + number) / 3)
    return layer


def expected(layer, x, *, pool=None, mask=None, axes=(), **arguments):
    """The layer pixel by pixel: project, attend by the double loop, project."""
    b, _, *grid = x.shape
    projected = torch.einsum("oe,be...->bo...", layer.in_proj.weight, x)
    if layer.in_proj.bias is not None:
        projected = projected + layer.in_proj.bias.view(-1, *[1] * len(grid))
    q, k, v = projected.detach().chunk(3, 1)
    q = q if pool is None else pool(q)
    heads = [y.reshape(b, layer.num_heads, layer.head_dim, -1).mT.numpy() for y in (q, k, v)]
    output, _ = definition.grid_attention(
        *heads, shape=tuple(grid), query_shape=tuple(q.shape[2:]), axes=axes, **arguments,
        mask=None if mask is None else mask.reshape(b, 1, 1, -1).numpy(),
    )  # fmt: skip
    y = torch.from_numpy(output).mT.reshape(q.shape)
    if layer.out_proj is not None:
        y = torch.einsum("oe,be...->bo...", layer.out_proj.weight, y)
        if layer.out_proj.bias is not None:
            y = y + layer.out_proj.bias.view(-1, *[1] * len(grid))
    return y.detach()


def axes_of(position):
    return [definition.Axis(keys=table(rows, -(rows.shape[1] // 2))) for rows in position.keys]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("heads", [1, 2])
def test_the_layer_equals_the_double_loop(grid, heads):
    layer, x = made(Grid(6, grid, heads)), normal(2, 12, *grid)
    assert_close(layer(x), expected(layer, x, axes=axes_of(layer.position)))


@pytest.mark.parametrize("grid", [(3, 4), (2, 5)])
def test_a_window_bias_equals_the_double_loop(grid):
    layer, x = made(WindowBias(2, grid)), normal(2, 12, *grid)
    joint_bias = layer.position.joint_bias.detach().numpy()
    assert_close(layer(x), expected(layer, x, joint_bias=joint_bias))


@pytest.mark.parametrize(
    "arguments", [{"bias": False}, {"projection": False}, {"head_dim": 5}, {"scale": 0.1}], ids=str
)
def test_every_form_equals_the_double_loop(arguments):
    layer = made(Grid(arguments.get("head_dim", 6), (3, 4)), **arguments)
    x = normal(2, 12, 3, 4)
    want = expected(layer, x, axes=axes_of(layer.position), scale=arguments.get("scale"))
    assert_close(layer(x), want)


def test_without_a_position_tokens_can_be_permuted():
    layer, x = made(), normal(2, 12, 3, 4)
    assert_close(layer(x.flip(2, 3)), layer(x).flip(2, 3))
    assert_close(layer(x), expected(layer, x))


@pytest.mark.parametrize("grid", [(5, 7), (4, 6), (1, 9)])
def test_pooled_queries_equal_the_double_loop(grid):
    def pool(q):
        return avg_pool2d(q, 2, ceil_mode=True)

    layer = made(Grid(6, grid), query_pool=nn.AvgPool2d(2, ceil_mode=True))
    x = normal(2, 12, *grid)
    got = layer(x)
    assert got.shape == (2, 12, *(-(-n // 2) for n in grid))
    assert_close(got, expected(layer, x, pool=pool, axes=axes_of(layer.position)))


@pytest.mark.parametrize(
    "position", [Shaw(6, 3), WindowBias(2, (4, 6)), torch.nn.Identity()], ids=repr
)
def test_pooled_queries_are_refused_where_the_position_does_not_know_their_grid(position):
    words = f"position must have reads_query_shape = True, .*, got {type(position).__name__}"
    with pytest.raises(ValueError, match=f"GridAttention: {words}"):
        GridAttention(12, 2, position=position, query_pool=nn.AvgPool2d(2))
    layer = GridAttention(12, 2, query_pool=nn.AvgPool2d(2))
    layer.position = position
    with pytest.raises(ValueError, match=f"GridAttention: {words}"):
        layer(torch.zeros(2, 12, 4, 6))


def test_a_learned_pool_receives_gradients():
    layer = made(Grid(6, (5, 7)), query_pool=nn.Conv2d(12, 12, 3, 2, 1, groups=12))
    layer(normal(2, 12, 5, 7)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_hidden_tokens_cannot_be_seen():
    layer, x = made(Grid(6, (5, 7))), normal(2, 12, 5, 7)
    mask = torch.ones(2, 5, 7, dtype=torch.bool)
    mask[0, :, 4:] = mask[1, 3:] = False
    got = layer(x, mask)
    assert_close(got, expected(layer, x, mask=mask, axes=axes_of(layer.position)))
    changed = x.where(mask[:, None], 1e3)
    assert_close(layer(changed, mask).where(mask[:, None], 0), got.where(mask[:, None], 0))


@pytest.mark.parametrize("position", [Grid(6, (5, 7)), WindowBias(2, (5, 7))])
def test_a_map_of_another_size_uses_the_positions_resized_rows(position):
    layer, x = made(position), normal(2, 12, 4, 9)
    q, k, v = (
        y.unflatten(-1, (2, 6)).transpose(1, 2) for y in layer.in_proj(x.flatten(2).mT).chunk(3, -1)
    )
    heads = relpos.attention(q, k, v, position(q, k, shape=(4, 9))[2])
    want = layer.out_proj(heads.transpose(1, 2).flatten(2)).mT.unflatten(2, (4, 9))
    assert_close(layer(x), want)


def test_a_scheme_for_sequences_sees_the_rows_one_after_the_other():
    layer, x = made(Shaw(6, 3)), normal(2, 12, 3, 4)
    assert_close(layer(x).flatten(2), layer(x.flatten(2)))


def test_a_scheme_that_reads_the_input_is_given_it():
    layer, x = made(RelativeLogits(5, 3, 2, 12)), normal(2, 12, 3, 4)
    assert_close(layer(x).flatten(2), layer(x.flatten(2)))


def test_transposing_map_and_tables_transposes_the_output():
    layer, x = made(Grid(6, (5, 7))), normal(2, 12, 5, 7)
    got = layer(x)
    other = made(Grid(6, (7, 5)))
    state = layer.state_dict()
    for a, b in (("0", "1"), ("1", "0")):
        state[f"position.keys.{a}"] = layer.position.keys[int(b)]
    other.load_state_dict(state)
    assert_close(other(x.mT).mT, got)


def test_gradients_are_exact_in_every_parameter():
    layer = made(Grid(6, (2, 3)))
    names = [name for name, _ in layer.named_parameters()]
    x = normal(1, 12, 2, 3).requires_grad_()

    def output(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, (x, *layer.parameters()), fast_mode=True)


def test_dropout_acts_in_training_only():
    layer, x = made(Grid(6, (3, 4)), dropout=0.5), normal(2, 12, 3, 4)
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtype_and_device_are_taken(dtype):
    layer = GridAttention(12, 2, device="meta", dtype=dtype)
    assert {p.dtype for p in layer.parameters()} == {dtype}
    assert {p.device.type for p in layer.parameters()} == {"meta"}
    layer, x = made(Grid(6, (3, 4))).to(dtype), normal(2, 12, 5, 3, dtype=dtype)
    assert layer(x).dtype == dtype


def test_projections_start_without_biases():
    layer = GridAttention(12, 2)
    assert (layer.in_proj.bias == 0).all()
    assert (layer.out_proj.bias == 0).all()


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_loading_agree(clone):
    layer, x = made(Grid(6, (3, 4))), normal(2, 12, 3, 4)
    assert_close(clone(layer)(x), layer(x))
    other = GridAttention(12, 2, position=Grid(6, (3, 4))).double()
    other.load_state_dict(layer.state_dict())
    assert_close(other(x), layer(x))


def test_repr_tells_the_sizes():
    layer = GridAttention(12, 2, head_dim=5, projection=False)
    assert layer.extra_repr() == "embed_dim=12, heads=2, head_dim=5, projection=False"
    assert GridAttention(12, 2, scale=0.25).extra_repr().endswith("head_dim=6, scale=0.25")


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("pool", [None, nn.AvgPool2d(2, ceil_mode=True)])
@pytest.mark.costly(4, of="compiled models")
def test_compiles_without_a_graph_break_on_any_map(pool):
    layer = made(Grid(6, (5, 7)), query_pool=pool)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    for grid in ((4, 6), (5, 7), (3, 9)):
        results = []
        for run in (layer, compiled):
            x = normal(2, 12, *grid).requires_grad_()
            layer.zero_grad()
            output = run(x)
            output.square().sum().backward()
            results.append([output, x.grad, *(p.grad for p in layer.parameters())])
        assert_close(*results)


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
def test_exports():
    layer, x = made(Grid(6, (5, 7))), normal(2, 12, 5, 7)
    assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"embed_dim": 0}, "embed_dim must be an integer >= 1, got 0"),
        ({"num_heads": 0}, "num_heads must be an integer >= 1, got 0"),
        ({"head_dim": 0}, "head_dim must be an integer >= 1, got 0"),
        (
            {"num_heads": 5},
            "embed_dim must be a multiple of num_heads=5 without a head_dim, got 12",
        ),
        ({"dropout": 1.0}, "dropout must be in 0 <= dropout < 1, got 1.0"),
        ({"scale": float("nan")}, "scale must be a finite number or None, got nan"),
        ({"scale": "0.5"}, "scale must be a finite number or None, got '0.5'"),
    ],
)
@pytest.mark.no_typecheck
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=f"GridAttention: {words}"):
        GridAttention(**{"embed_dim": 12, "num_heads": 2} | arguments)


@pytest.mark.no_typecheck
def test_inputs_that_do_not_fit_are_named():
    layer, x = GridAttention(12, 2), torch.zeros(2, 12, 3, 4)
    with pytest.raises(
        relpos.ShapeError, match=r"GridAttention: x must be \(b, e, \*grid\) with e"
    ):
        layer(x[:, :5])
    with pytest.raises(relpos.ShapeError, match=r"GridAttention: x must be .* got \(2, 12\)"):
        layer(x[..., 0, 0])
    mask = torch.ones(2, 4, 3, dtype=torch.bool)
    with pytest.raises(relpos.ShapeError, match=r"mask must be \(b, \*grid\) = \(2, 3, 4\), got"):
        layer(x, mask)
    with pytest.raises(relpos.ShapeError, match=r"mask must be boolean, got torch\.float32"):
        layer(x, torch.ones(2, 3, 4))


@pytest.mark.no_typecheck
def test_a_pool_that_is_no_module_is_named():
    with pytest.raises(TypeError, match="GridAttention: query_pool must be an"):
        GridAttention(8, 2, query_pool=2)  # type: ignore[arg-type]
