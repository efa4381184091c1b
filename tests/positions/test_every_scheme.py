"""What every scheme promises, whatever its terms are."""

import copy
import inspect
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import relpos
from relpos.adapters import AbsPosEmb1D, RelPosEmb1D, RelPosEmb2D
from relpos.layers import KeyValueCache, MultiheadAttention
from relpos.positions import (
    AbsoluteKeys,
    Alibi,
    AxialRotary,
    Bidirectional,
    Compose,
    ContinuousBias,
    Deberta,
    DebertaEmbedding,
    GatedBias,
    Grid,
    Huang,
    Kerple,
    NoPosition,
    RelativeLogits,
    Rotary,
    Sandwich,
    Shaw,
    T5Bias,
    TransformerXL,
    WindowBias,
    XPos,
)
from tests.factories import normal

TRAINED = {"factor": 4.0, "original_max_position_embeddings": 8}
# For 4 heads that are 4 wide. Those of a sequence, with tables shorter than the tests' inputs:
SEQUENCES = {
    "shaw": lambda: Shaw(4, 3),
    "shaw zero": lambda: Shaw(4, (3, 1), 4, beyond="zero"),
    "huang": lambda: Huang(4, 7),
    "bidirectional": lambda: Bidirectional(4, 7, 4),
    "transformer xl": lambda: TransformerXL(4, 4),
    # A bias in W_k would add one number to all scores of a query, which moves nothing.
    "deberta": lambda: Deberta(4, 4, 7, position_buckets=4, key_proj=nn.Linear(16, 16, bias=False)),
    "t5": lambda: T5Bias(4, 8, 20),
    "t5 decoder": lambda: T5Bias(4, 8, 20, bidirectional=False),
    "t5 shared": lambda: T5Bias(1, 8, 20),
    "gated t5": lambda: GatedBias(T5Bias(4, 8, 20), 4, 4),
    "gated alibi": lambda: GatedBias(Alibi(4), 4, 4),
    "alibi": lambda: Alibi(4),
    "alibi causal": lambda: Alibi(4, causal=True),
    "alibi learned": lambda: Alibi(4, learned=True),
    "relative logits": lambda: RelativeLogits(7, 3, 4, 16),
    "absolute keys": lambda: AbsoluteKeys(4, 7),
    "none": NoPosition,
    "rotary": lambda: Rotary(4),
    "rotary interleaved, a part": lambda: Rotary(4, interleaved=True, rotary_dim=2),
    "rotary linear": lambda: Rotary(4, scaling={"rope_type": "linear", "factor": 4.0}),
    "rotary yarn": lambda: Rotary(4, scaling={"rope_type": "yarn", **TRAINED}),
    "xpos": lambda: XPos(4, scale_base=16.0),
    "kerple": lambda: Kerple(4),
    "kerple power": lambda: Kerple(4, "power", causal=True),
    "sandwich": lambda: Sandwich(4, 16),
    "rotary and shaw values": lambda: Compose(Rotary(4), Shaw(4, 3, keys=False)),
    "shaw, then rotary": lambda: Compose(Shaw(4, 3, 4), Rotary(4)),
    "rotary, then shaw": lambda: Compose(Rotary(4), Shaw(4, 3, 4)),
    "rotary, then bidirectional": lambda: Compose(Rotary(4), Bidirectional(4, 7)),
    "rotary, then xl": lambda: Compose(Rotary(4), TransformerXL(4, 4)),
    "rotary, then other pairs": lambda: Compose(Rotary(4), Rotary(4, interleaved=True)),
    "rotary, then gates": lambda: Compose(Rotary(4), GatedBias(T5Bias(4, 8, 20), 4, 4)),
    "rotary, then relative logits": lambda: Compose(Rotary(4), RelativeLogits(7, 3, 4, 16)),
    "xpos, then shaw values": lambda: Compose(XPos(4), Shaw(4, 3, keys=False)),
    "t5 and huang": lambda: Compose(T5Bias(4, 8, 20), Huang(4, 7)),
    "xl, then xpos, t5 and alibi": lambda: Compose(
        TransformerXL(4, 4, biases=False), XPos(4), Compose(T5Bias(4, 8, 20), Alibi(4))
    ),
    "gated t5 and kerple": lambda: Compose(GatedBias(T5Bias(4, 8, 20), 4, 4), Kerple(4)),
    "AbsPosEmb1D": lambda: AbsPosEmb1D(7, 4),
    "RelPosEmb1D": lambda: RelPosEmb1D(7, 4),
    "RelPosEmb1D per head": lambda: RelPosEmb1D(7, 4, 4),
}
# Those of a map of 3 x 5 tokens:
MAPS = {
    "grid": lambda: Grid(4, (3, 5), values=True),
    "grid unscaled": lambda: Grid(4, (3, 5), 4, scaled=False),
    "window": lambda: WindowBias(4, (3, 5)),
    "axial rotary": lambda: AxialRotary(4, (3, 5)),
    "continuous bias": lambda: ContinuousBias(4, (3, 5), hidden=8),
    "continuous bias alone": lambda: ContinuousBias(4, (3, 5), hidden=8, cosine=False),
    "axial rotary and a window": lambda: Compose(AxialRotary(4, (3, 5)), WindowBias(4, (3, 5))),
    "grid, then cosines": lambda: Compose(
        Grid(4, (3, 5), values=True), ContinuousBias(4, (3, 5), hidden=8)
    ),
    "RelPosEmb2D": lambda: RelPosEmb2D((3, 5), 4),
    "RelPosEmb2D per head": lambda: RelPosEmb2D((3, 5), 4, 4),
}
SCHEMES = SEQUENCES | MAPS
each_sequence = pytest.mark.parametrize("name", SEQUENCES)
each_scheme = pytest.mark.parametrize("name", SCHEMES)


def built(name, dtype=torch.float64):
    torch.manual_seed(0)
    return SCHEMES[name]().to(dtype)


def layer_with(name, **arguments):
    torch.manual_seed(0)
    position = SCHEMES[name]()
    layer = MultiheadAttention(16, 4, num_kv_heads=2, position=position, **arguments)
    return layer.double().eval()


def attended(position, q, k, v, x, **arguments):
    q, k, terms = position(q, k, x) if position.reads_input else position(q, k)
    return relpos.attention(q, k, v, terms, scale=position.attention_scale, **arguments)


def inputs(i=15, j=None, dtype=torch.float64):
    shapes = (2, 4, i, 4), (2, 2, j or i, 4), (2, 2, j or i, 4), (2, i, 16)
    return [normal(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize("window", [None, (6, 0)], ids=["all keys", "a window"])
@each_sequence
@given(cuts=st.sets(st.integers(1, 32), max_size=5))
@settings(max_examples=5, deadline=None)
def test_decoding_in_chunks_equals_one_pass(name, window, cuts):
    layer, x = layer_with(name, window=window), normal(2, 33, 16)
    want = layer(x, x, x, is_causal=True, need_weights=False)[0]
    cache, parts = KeyValueCache(), []
    for part in x.tensor_split(sorted(cuts), dim=1):
        parts.append(layer(part, part, part, need_weights=False, is_causal=True, cache=cache)[0])
    assert_close(torch.cat(parts, 1), want)


@each_scheme
def test_a_scheme_is_shift_invariant_exactly_if_it_does_not_notice_that_keys_were_dropped(name):
    position, (q, k, v, x) = built(name), inputs(15, 15)
    if name in MAPS:
        # A map has all its tokens.
        assert not position.shift_invariant
        return
    q, x = q[:, :, 10:], x[:, 10:]
    last = relpos.padding_ranges(torch.tensor([11]), 15, queries=5, side="left")
    want = attended(position, q, k, v, x, key_ranges=last)
    got = attended(position, q, k[:, :, 4:], v[:, :, 4:], x)
    assert torch.allclose(got, want) == position.shift_invariant


@each_scheme
def test_logits_are_what_is_added_to_the_content(name):
    position, (q, k, _, x) = built(name), inputs()
    scale = position.attention_scale or 0.5
    moved_q, moved_k, terms = position(q, k, x) if position.reads_input else position(q, k)
    weights = relpos.attention_weights(moved_q, moved_k, terms, scale=scale)
    scores = scale * q @ k.repeat_interleave(2, 1).mT + position.logits(q, k, x)
    assert_close(weights, scores.softmax(-1))


@each_scheme
def test_every_parameter_moves_the_output(name):
    position, (q, k, v, x) = built(name), inputs()
    attended(position, q.requires_grad_(), k, v, x).square().sum().backward()
    for label, numbers in position.named_parameters():
        assert numbers.grad.isfinite().all(), label
        assert numbers.grad.abs().sum() > 1e-6, label


@each_scheme
def test_gradients_are_exact(name):
    position = built(name)
    names = [label for label, _ in position.named_parameters()]
    q, k, v, x = (tensor[:1] for tensor in inputs())

    def outputs(q, k, v, x, *parameters):
        values = dict(zip(names, parameters, strict=True))
        given = (q, k, x) if position.reads_input else (q, k)
        q, k, terms = torch.func.functional_call(position, values, given)
        return relpos.attention(q, k, v, terms)

    tensors = [tensor.requires_grad_() for tensor in (q, k, v, x)]
    assert torch.autograd.gradcheck(outputs, (*tensors, *position.parameters()), fast_mode=True)


@each_scheme
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_agree_and_share_nothing(name, clone):
    position = built(name)
    other = clone(position)
    given = inputs()
    assert torch.equal(attended(position, *given), attended(other, *given))
    for numbers, others in zip(position.parameters(), other.parameters(), strict=True):
        assert numbers.data_ptr() != others.data_ptr()


@each_scheme
def test_a_state_dict_goes_round(name):
    position, other = built(name), SCHEMES[name]().double()
    with torch.no_grad():
        for numbers in position.parameters():
            numbers.add_(torch.randn_like(numbers))
    other.load_state_dict(position.state_dict())
    given = inputs()
    assert torch.equal(attended(position, *given), attended(other, *given))
    assert position.state_dict().keys() == dict(position.named_parameters()).keys()


@each_scheme
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_results_have_the_dtype_of_the_queries(name, dtype):
    output = attended(built(name, dtype), *inputs(dtype=dtype))
    assert output.dtype == dtype
    assert output.isfinite().all()


@each_scheme
def test_autocast_is_taken(name):
    position = built(name, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = attended(position, *inputs(dtype=torch.float32))
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()


@each_scheme
def test_memory_given_later_is_filled_by_reset_parameters(name):
    want = built(name, torch.float32)
    with torch.device("meta"):
        position = SCHEMES[name]()
    assert {numbers.device.type for numbers in position.state_dict().values()} <= {"meta"}
    position = position.to_empty(device="cpu")
    for module in position.modules():
        for numbers in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            numbers.data.fill_(5)
    for module in position.modules():
        if isinstance(module, relpos.positions.Position):
            module.reset_parameters()
    position.load_state_dict(want.state_dict())
    given = inputs(dtype=torch.float32)
    assert torch.equal(attended(position, *given), attended(want, *given))


@each_scheme
def test_on_device_meta_everything_stays_there(name):
    q, k, _, x = (tensor.to("meta") for tensor in inputs(dtype=torch.float32))
    position = built(name, torch.float32).to("meta")
    moved_q, moved_k, terms = position(q, k, x) if position.reads_input else position(q, k)
    assert (moved_q.shape, moved_k.shape) == (q.shape, k.shape)
    assert all(tensor.is_meta for tensor in (moved_q, moved_k, *terms.tensors))


REPRS = {
    "t5 decoder": "T5Bias(heads=4, buckets=8, max_distance=20, bidirectional=False)",
    "alibi learned": "Alibi(heads=4, causal=False, learned=True)",
    "alibi causal": "Alibi(heads=4, causal=True)",
    "absolute keys": "AbsoluteKeys(head_dim=4, max_length=7)",
    "AbsPosEmb1D": "AbsPosEmb1D(tokens=7, dim_head=4)",
    "RelPosEmb1D per head": "RelPosEmb1D(tokens=7, dim_head=4, heads=4)",
}


@pytest.mark.parametrize("name", REPRS)
def test_repr_tells_the_arguments(name):
    assert repr(built(name)) == REPRS[name]


@pytest.mark.parametrize(
    ("position", "told"),
    [
        (GatedBias(Alibi(4), 4, 4, scale=0.5), "heads=4, head_dim=4, scale=0.5"),
        (RelativeLogits(7, 3, 4, 16), "extent=7, width=3, heads=4, embed_dim=16"),
        (RelPosEmb2D((3, 5), 4), "feat_map_size=(3, 5), dim_head=4, heads=None"),
    ],
)
def test_repr_of_a_scheme_with_parts_tells_the_arguments(position, told):
    assert position.extra_repr() == told


# What a scheme that has flags needs beside them.
NEEDED = {
    Alibi: (4,), AxialRotary: (4, (3, 4)), ContinuousBias: (4, (3, 4)), Deberta: (4, 4, 7),
    DebertaEmbedding: (16, 7), Grid: (4, (3, 4)), Kerple: (4,), Rotary: (4,), Sandwich: (4, 16),
    Shaw: (4, 3), T5Bias: (4,), TransformerXL: (4, 4), WindowBias: (4, (3, 4)), XPos: (4,),
}  # fmt: skip


def flags(cls: type) -> list[str]:
    """The names of a class's arguments that are True or False."""
    parameters = inspect.signature(cls).parameters.values()
    return [each.name for each in parameters if isinstance(each.default, bool)]


@pytest.mark.no_typecheck
@pytest.mark.parametrize("given", ["no", 1, None, float("nan")])
def test_flags_are_true_or_false(given):
    public = [getattr(relpos.positions, name) for name in relpos.positions.__all__]
    assert {cls for cls in public if isinstance(cls, type) and flags(cls)} == set(NEEDED)
    for cls, needed in NEEDED.items():
        for name in flags(cls):
            with pytest.raises(TypeError, match=f"{cls.__name__}: {name} must be True or False"):
                cls(*needed, **{name: given})
