"""`WindowBias`: Swin's index and resizing, against the double loop."""

import copy
import pickle
from math import prod

import pytest
import torch
from torch.nn.functional import interpolate
from torch.testing import assert_close

import relpos
from relpos import definition
from relpos.positions import WindowBias
from tests.factories import normal
from tests.positions.test_grid import OnMap

SHAPES = [(5, 7), (1, 9), (4,), (2, 3, 4)]


def tokens(shape, *, h=2, prefix=0):
    return [normal(1, h, prefix + prod(shape), 6, seed=seed) for seed in range(3)]


def judged(q, k, v, joint_bias, **arguments):
    output, _ = definition.grid_attention(
        *(x.numpy() for x in (q, k, v)),
        axes=(),
        joint_bias=joint_bias.detach().numpy(),
        **arguments,
    )
    return torch.from_numpy(output)


def drawn(heads, shape, **options):
    """A bias large enough to be seen."""
    position = WindowBias(heads, shape, dtype=torch.float64, **options)
    position.joint_bias.data = normal(*position.joint_bias.shape)
    return position


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("prefix", [0, 1])
def test_attention_equals_the_double_loop(shape, heads, prefix):
    position = drawn(heads, shape, prefix=prefix)
    assert position.joint_bias.shape == (heads, *(2 * n - 1 for n in shape))
    q, k, v = tokens(shape, prefix=prefix)
    got = relpos.attention(q, k, v, position(q, k)[2])
    assert_close(got, judged(q, k, v, position.joint_bias, shape=shape, prefix=prefix))


def test_the_bias_is_swins_index_into_its_table():
    """Liu et al. 2021: query minus key, both shifted to start at 0, one row per pair of offsets."""
    height, width, heads = 3, 5, 2
    stored = normal((2 * height - 1) * (2 * width - 1), heads)
    position = WindowBias(heads, (height, width), dtype=torch.float64)
    sizes = (2 * height - 1, 2 * width - 1)
    position.joint_bias.data = stored.mT.unflatten(1, sizes).flip(1, 2)
    dense = position.dense().detach()
    for i in range(height * width):
        for j in range(height * width):
            down = i // width - j // width + height - 1
            right = i % width - j % width + width - 1
            assert_close(dense[:, i, j], stored[down * (2 * width - 1) + right])


def test_dense_is_what_is_added_to_the_scores():
    position = drawn(2, (3, 4), prefix=1)
    q, k, _ = tokens((3, 4), prefix=1)
    assert_close(position.logits(q, k, scale=0.3)[0], position.dense())
    assert (position.dense()[:, 0] == 0).all()
    assert (position.dense()[:, :, 0] == 0).all()


@pytest.mark.parametrize(("made", "called"), [((5, 7), (7, 5)), ((4, 4), (3, 9)), ((1, 9), (4, 4))])
def test_another_window_uses_the_bias_resized_as_swins_is(made, called):
    position = drawn(2, made)
    q, k, v = tokens(called)
    sizes = tuple(2 * n - 1 for n in called)
    resized = interpolate(position.joint_bias[None], size=sizes, mode="bicubic")[0]
    got = relpos.attention(q, k, v, position(q, k, shape=called)[2])
    assert_close(got, judged(q, k, v, resized, shape=called))


def test_without_resizing_entries_keep_their_offsets_and_the_ends_clamp():
    position = drawn(2, (3, 4), resize=False)
    at = [
        [max(-n + 1, min(n - 1, o)) + n - 1 for o in range(1 - m, m)]
        for n, m in zip((3, 4), (5, 2), strict=True)
    ]
    q, k, v = tokens((5, 2))
    got = relpos.attention(q, k, v, position(q, k, shape=(5, 2))[2])
    assert_close(got, judged(q, k, v, position.joint_bias[:, at[0]][:, :, at[1]], shape=(5, 2)))


@pytest.mark.parametrize("resize", [True, False])
def test_all_scalars_receive_gradients(resize):
    position = drawn(2, (3, 4), resize=resize)
    for shape in ((3, 4), (5, 6)):
        q, k, v = tokens(shape)
        relpos.attention(q, k, v, position(q, k, shape=shape)[2]).square().sum().backward()
        assert (position.joint_bias.grad != 0).all()
        position.zero_grad()


def test_the_bias_starts_small():
    assert_close(WindowBias(8, (30, 30)).joint_bias.std().item(), 0.02, rtol=0.05, atol=0)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_loading_agree(clone):
    position = WindowBias(2, (3, 4))
    assert_close(clone(position).dense(), position.dense())
    other = WindowBias(2, (3, 4))
    other.load_state_dict(position.state_dict())
    assert torch.equal(other.joint_bias, position.joint_bias)


def test_dtype_and_device_are_taken():
    joint_bias = WindowBias(2, (3, 4), device="meta", dtype=torch.bfloat16).joint_bias
    assert joint_bias.dtype == torch.bfloat16
    assert joint_bias.is_meta


def test_repr_tells_heads_and_window():
    assert repr(WindowBias(2, (3, 4))) == "WindowBias(heads=2, shape=(3, 4))"
    position = WindowBias(2, (3, 4), prefix=1, resize=False)
    assert repr(position) == "WindowBias(heads=2, shape=(3, 4), prefix=1, resize=False)"


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.costly(4, of="compiled models")
def test_without_resizing_compiles_without_a_graph_break_on_any_window():
    module = OnMap(WindowBias(2, (5, 7), resize=False))
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for shape in ((4, 6), (5, 7), (3, 9)):
        results = []
        for run in (module, compiled):
            x = normal(1, 2, 6, *shape, dtype=torch.float32).requires_grad_()
            module.zero_grad()
            output = run(x)
            output.square().sum().backward()
            results.append([output, x.grad, module.position.joint_bias.grad])
        assert_close(*results)


@pytest.mark.no_typecheck
def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="WindowBias: heads must be an integer >= 1, got 0"):
        WindowBias(0, (3, 4))
    with pytest.raises(ValueError, match="WindowBias: shape must be one size per axis, got 7"):
        WindowBias(2, 7)
    with pytest.raises(ValueError, match="WindowBias: prefix must be an integer >= 0, got -1"):
        WindowBias(2, (3, 4), prefix=-1)
    position = WindowBias(2, (3, 4))
    q, k, _ = tokens((3, 4), h=3)
    with pytest.raises(relpos.ShapeError, match=r"WindowBias: q must be .* with h=2, i=12, got"):
        position(q, k)
    for shape, named in ((None, "k must be .* with j=12"), ((3, 3), "q must be .* with h=2, i=9")):
        with pytest.raises(relpos.ShapeError, match=f"WindowBias: {named}, got"):
            position(q[:, :2], k[:, :, :9], shape=shape)
    with pytest.raises(ValueError, match="WindowBias: shape must be one size per axis, 2 in all"):
        position.dense((12,))
