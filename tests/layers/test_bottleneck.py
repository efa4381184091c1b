"""BoTNet's block against its formula: strides, shortcut, positions, copies and dtypes."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import relpos
from relpos.layers import BottleneckBlock
from relpos.positions import Grid, WindowBias
from tests.factories import normal

SMALL = {"dim_out": 24, "proj_factor": 2, "heads": 2, "dim_head": 6}


def made(dim, feat_map_size, **arguments):
    block = BottleneckBlock(dim, feat_map_size, **SMALL | arguments).double().eval()
    with torch.no_grad():
        for number, tensor in enumerate([*block.parameters(), *block.buffers()]):
            if tensor.is_floating_point():
                tensor.copy_(normal(*tensor.shape, seed=number).abs() / 2 + 0.1)
    return block


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 8), (1, 9), (2, 3)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_both_branches_have_the_same_size_at_any_stride(shape, stride):
    block = BottleneckBlock(10, shape, downsample=stride > 1, stride=stride, **SMALL)
    assert block(torch.zeros(2, 10, *shape)).shape == (2, 24, *(-(-n // stride) for n in shape))


@pytest.mark.parametrize("dim", [10, 24])
def test_the_block_is_its_parts_in_their_order(dim):
    block, x = made(dim, (4, 6), downsample=dim == 10), normal(2, dim, 4, 6)
    y = block.contract(x).relu()
    y = block.attention(y)
    y = nn.functional.avg_pool2d(y, 2) if dim == 10 else y
    y = block.expand(block.attention_norm(y).relu())
    assert_close(block(x), (y + block.shortcut(x)).relu())
    assert isinstance(block.shortcut, nn.Identity) == (dim == 24)


def normed(norm, x):
    """Batch norm at inference, channel by channel."""
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return (x - norm.running_mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)


def mixed(conv, x):
    """A 1 x 1 convolution without bias: a matrix on the channels."""
    return torch.einsum("oe,behw->bohw", conv.weight[:, :, 0, 0], x)


def attended(layer, x):
    """Softmax of `(q_i . k_j + q_i . H[j_h - i_h] + q_i . W[j_w - i_w]) / sqrt(d)`, no biases."""
    b, _, m, n = x.shape
    q, k, v = torch.einsum("oe,behw->bohw", layer.in_proj.weight, x).chunk(3, 1)
    q, k, v = (y.reshape(b, layer.num_heads, layer.head_dim, m, n) for y in (q, k, v))
    rows, columns = (table[0] for table in layer.position.keys)
    at = torch.arange(m) - torch.arange(m)[:, None] + m - 1
    across = torch.arange(n) - torch.arange(n)[:, None] + n - 1
    scores = torch.einsum("bhdmn,bhdrs->bhmnrs", q, k)
    scores = scores + torch.einsum("bhdmn,mrd->bhmnr", q, rows[at])[..., None]
    scores = scores + torch.einsum("bhdmn,nsd->bhmns", q, columns[across])[..., None, :]
    weights = (scores / layer.head_dim**0.5).flatten(4).softmax(-1).unflatten(-1, (m, n))
    return torch.einsum("bhmnrs,bhdrs->bhdmn", weights, v).reshape(b, -1, m, n)


@pytest.mark.parametrize(("dim", "stride"), [(24, 1), (10, 1), (10, 2), (24, 2), (10, 3)])
def test_the_block_is_its_formula(dim, stride):
    block = made(dim, (4, 6), downsample=stride > 1, stride=stride)
    with torch.no_grad():
        # Signs of both kinds, so that an activation that is missing shows.
        for number, parameter in enumerate(block.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=50 + number) / 2)
    x = normal(2, dim, 4, 6)
    y = normed(block.contract[1], mixed(block.contract[0], x)).relu()
    y = attended(block.attention, y)
    y = nn.functional.avg_pool2d(y, stride, ceil_mode=True)
    y = normed(block.attention_norm, y).relu()
    y = normed(block.expand[1], mixed(block.expand[0], y))
    past = x
    if stride > 1:
        past = nn.functional.conv2d(x, block.shortcut[0].weight, stride=stride, padding=1)
    elif dim != 24:
        past = mixed(block.shortcut[0], x)
    if past is not x:
        past = normed(block.shortcut[1], past).relu()
    assert_close(block(x), (past + y).relu())


@pytest.mark.parametrize(("stride", "kernel"), [(1, 1), (2, 3), (3, 3)])
def test_the_parts_are_as_the_docstring_says(stride, kernel):
    block = BottleneckBlock(10, (4, 6), downsample=stride > 1, stride=stride, **SMALL)
    shapes = {name: tuple(p.shape) for name, p in block.named_parameters() if p.ndim > 1}
    assert shapes == {
        "shortcut.0.weight": (24, 10, kernel, kernel),
        "contract.0.weight": (12, 10, 1, 1),
        "attention.in_proj.weight": (36, 12),
        "attention.position.keys.0": (1, 7, 6),
        "attention.position.keys.1": (1, 11, 6),
        "expand.0.weight": (24, 12, 1, 1),
    }
    # Only the norms have biases.
    norms = ("shortcut.1", "contract.1", "attention_norm", "expand.1")
    names = {name for name, _ in block.named_parameters() if name.endswith("bias")}
    assert names == {f"{norm}.bias" for norm in norms}


@pytest.mark.no_typecheck
@pytest.mark.parametrize("size", [np.int64(4), (np.int32(4), 4), [4, 4]])
def test_sizes_of_numpy_are_welcome(size):
    assert BottleneckBlock(10, feat_map_size=size, **SMALL).attention.position.shape == (4, 4)


def test_it_starts_as_its_shortcut():
    block = BottleneckBlock(24, (3, 4), **SMALL)
    x = torch.randn(2, 24, 3, 4)
    assert torch.equal(block(x), x.relu())


def test_positions_are_the_papers_unless_others_are_given():
    position = BottleneckBlock(10, (3, 4), **SMALL).attention.position
    assert isinstance(position, Grid)
    assert [rows.shape for rows in position.keys] == [(1, 5, 6), (1, 7, 6)]
    square = BottleneckBlock(10, 4, **SMALL).attention.position
    assert square.shape == (4, 4)
    window = WindowBias(2, (3, 4))
    assert BottleneckBlock(10, (3, 4), position=window, **SMALL).attention.position is window


def test_positions_matter_and_other_maps_use_resized_rows():
    block = made(10, (3, 4))
    with torch.no_grad():
        for rows in block.attention.position.keys:
            rows.copy_(normal(*rows.shape, seed=9))
    x = normal(2, 10, 5, 3)
    assert block(x).shape == (2, 24, 5, 3)
    assert not torch.allclose(block(x.flip(2)).flip(2), block(x))


def test_every_parameter_receives_a_gradient():
    block = made(10, (3, 5), downsample=True).train()
    block(normal(3, 10, 3, 5)).square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_the_activation_can_be_chosen():
    block, x = made(24, (3, 4), activation=nn.GELU()), normal(2, 24, 3, 4)
    assert (block(x - 2) < 0).any()
    assert not any(isinstance(module, nn.ReLU) for module in block.modules())


def test_a_window_leaves_far_pixels_out():
    block = BottleneckBlock(8, (5, 7), dim_out=8, heads=2, dim_head=4, window=((1, 1), (2, 0)))
    nn.init.ones_(block.expand[-1].weight)
    x = normal(1, 8, 5, 7).requires_grad_()
    (gradient,) = torch.autograd.grad(block.double().eval()(x)[0, :, 2, 3].square().sum(), x)
    seen = torch.zeros(5, 7, dtype=torch.bool)
    seen[1:4, 1:4] = True
    assert torch.equal((gradient[0] != 0).any(0), seen)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_loading_agree(clone):
    block, x = made(10, (3, 4)), normal(2, 10, 3, 4)
    assert_close(clone(block)(x), block(x))
    other = BottleneckBlock(10, (3, 4), **SMALL).double().eval()
    other.load_state_dict(block.state_dict())
    assert_close(other(x), block(x))


def test_dtype_and_device_are_taken():
    block = BottleneckBlock(10, (3, 4), device="meta", dtype=torch.bfloat16, **SMALL)
    assert {p.dtype for p in block.parameters()} == {torch.bfloat16}
    assert {p.device.type for p in block.parameters()} == {"meta"}


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.costly(4, of="compiled models")
def test_compiles_without_a_graph_break_on_any_map():
    block = made(10, (3, 4), downsample=True)
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="eager")
    for shape in ((5, 7), (3, 4), (6, 4)):
        x = normal(2, 10, *shape)
        assert_close(compiled(x), block(x))


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dim": 0}, "dim must be an integer >= 1, got 0"),
        ({"feat_map_size": (3, 4, 5)}, "feat_map_size must be one size per axis, 2 in all, got"),
        ({"feat_map_size": 0}, "feat_map_size must be an integer >= 1, got 0"),
        ({"feat_map_size": 5.0}, "feat_map_size must be an integer >= 1, got 5.0"),
        ({"feat_map_size": None}, "feat_map_size must be an integer >= 1, got None"),
        ({"proj_factor": 5}, "dim_out must be a multiple of proj_factor=5, got 24"),
        ({"downsample": True, "stride": 0}, "stride must be an integer >= 1, got 0"),
        ({"heads": 0}, "heads must be an integer >= 1, got 0"),
        ({"dim_head": 0}, "dim_head must be an integer >= 1, got 0"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=f"BottleneckBlock: {words}"):
        BottleneckBlock(**{"dim": 10, "feat_map_size": (3, 4)} | SMALL | arguments)


@pytest.mark.no_typecheck
def test_a_map_that_does_not_fit_is_named():
    block = BottleneckBlock(10, (3, 4), **SMALL)
    with pytest.raises(relpos.ShapeError, match=r"BottleneckBlock: x must be .* with e=10, got"):
        block(torch.zeros(2, 11, 3, 4))
