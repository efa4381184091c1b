"""Encoder and decoder blocks: residual order, caches, cross-attention, dropout, state dicts."""

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import relpos
from relpos.layers import DecoderBlock, EncoderBlock, KeyValueCache, MultiheadAttention
from relpos.positions import Huang, Shaw, TransformerXL
from tests.factories import normal


def block(**arguments):
    torch.manual_seed(0)
    attention = MultiheadAttention(12, 3, position=Huang(4, 7))
    return DecoderBlock(attention, **arguments).double()


def encoder(position=None, **arguments):
    torch.manual_seed(0)
    attention = MultiheadAttention(12, 3, position=position or Shaw(4, 3))
    return EncoderBlock(attention, **arguments).double()


ACROSS = {"none": lambda: None, "shaw": lambda: Shaw(4, 3), "xl": lambda: TransformerXL(4, 3)}
each_across = pytest.mark.parametrize("across", ACROSS.values(), ids=list(ACROSS))


def reader(across, **arguments):
    """A decoder's block over a memory that is 10 wide."""
    torch.manual_seed(1)
    cross = MultiheadAttention(12, 3, kdim=10, vdim=10, num_kv_heads=1, position=across())
    if cross.position is not None:
        for parameter in cross.position.parameters():
            torch.nn.init.normal_(parameter)
    return block(cross=cross, **arguments)


def test_a_block_adds_attention_and_then_the_mlp():
    made, x = block(), normal(2, 9, 12)
    y = made.attention_norm(x)
    x_ = x + made.attention(y, y, y, is_causal=True)[0]
    assert_close(made(x), x_ + made.mlp(made.mlp_norm(x_)))


def test_a_block_is_causal():
    made, x = block(), normal(2, 9, 12)
    later = x.clone()
    later[:, 5:] = normal(2, 4, 12, seed=1)
    assert_close(made(later)[:, :5], made(x)[:, :5])


def test_a_block_takes_a_cache():
    made, x, cache = block(), normal(2, 9, 12), KeyValueCache()
    parts = [made(part, cache) for part in x.split([4, 1, 4], 1)]
    assert_close(torch.cat(parts, 1), made(x))


@pytest.mark.parametrize("made", [block, encoder])
def test_the_mlp_is_four_times_as_wide_unless_told(made):
    assert made().mlp[0].out_features == 48
    assert made(hidden=7).mlp[0].out_features == 7


@pytest.mark.parametrize("made", [block, encoder])
def test_dropout_acts_in_training_only(made):
    made, x = made(dropout=0.5), normal(2, 9, 12)
    assert not torch.equal(made(x), made(x))
    assert torch.equal(made.eval()(x), made(x))


def test_an_encoders_block_sees_both_directions():
    made, x = encoder(), normal(2, 9, 12)
    y = made.attention_norm(x)
    x_ = x + made.attention(y, y, y)[0]
    assert_close(made(x), x_ + made.mlp(made.mlp_norm(x_)))
    later = x.clone()
    later[:, 5:] = normal(2, 4, 12, seed=1)
    assert (made(later)[:, :5] - made(x)[:, :5]).abs().min() > 0


@pytest.mark.parametrize("position", [None, TransformerXL(4, 3)])
def test_padding_reaches_no_other_place(position):
    made, x = encoder(position), normal(2, 9, 12)
    padding = torch.arange(9) >= torch.tensor([[9], [5]])
    changed = x.clone()
    changed[1, 5:] = 1e3
    got = made(changed, padding)
    assert_close(got[0], made(x)[0])
    assert_close(got[1, :5], made(x[1:, :5])[0])


def test_an_encoders_block_has_the_names_of_a_decoders():
    assert list(encoder(Huang(4, 7)).state_dict()) == list(block().state_dict())


@each_across
@pytest.mark.parametrize("i", [3, 9])
def test_a_block_reads_the_memory_between_attention_and_mlp(across, i):
    made, x, memory = reader(across), normal(2, i, 12), normal(2, 7, 10, seed=1)
    padding = torch.arange(7) >= torch.tensor([[7], [4]])
    y = made.attention_norm(x)
    x_ = x + made.attention(y, y, y, is_causal=True)[0]
    # Both sides count from 0: query i and the memory's token i have offset 0.
    y, _ = made.cross(made.cross_norm(x_), memory, memory, padding, query_start=0)
    x_ = x_ + y
    got = made(x, memory=memory, memory_key_padding_mask=padding)
    assert_close(got, x_ + made.mlp(made.mlp_norm(x_)))


@each_across
@given(cuts=st.sets(st.integers(1, 16), max_size=5))
@settings(max_examples=8, deadline=None)
def test_decoding_over_a_memory_in_chunks_equals_one_pass(across, cuts):
    made, x, memory = reader(across), normal(2, 17, 12), normal(2, 7, 10, seed=1)
    padding = torch.arange(7) >= torch.tensor([[7], [4]])
    full = made(x, memory=memory, memory_key_padding_mask=padding)
    # With and without a cache of the memory; later chunks then need no memory.
    for memory_cache in (None, KeyValueCache()):
        cache, parts = KeyValueCache(), []
        for a, b in pairwise([0, *sorted(cuts), 17]):
            given_ = memory if a == 0 or memory_cache is None else None
            part = made(
                x[:, a:b], cache, memory=given_, memory_key_padding_mask=padding,
                memory_cache=memory_cache,
            )  # fmt: skip
            parts.append(part)
        assert_close(torch.cat(parts, 1), full)
        assert memory_cache is None or memory_cache.length == 7


def test_a_cached_memory_is_projected_once():
    made, memory = reader(ACROSS["none"]), normal(2, 7, 10, seed=1)
    cache, memory_cache, read = KeyValueCache(), KeyValueCache(), []
    project = made.cross._project

    def counting(query, key, value, **arguments):
        read.append(key.shape[1])
        return project(query, key, value, **arguments)

    made.cross._project = counting
    for n in range(3):
        made(normal(2, 1, 12, seed=n), cache, memory=memory, memory_cache=memory_cache)
    assert read == [7, 0, 0]


def test_both_caches_follow_a_beam():
    made, memory = reader(ACROSS["shaw"]), normal(2, 7, 10, seed=1)
    x, order = normal(2, 5, 12), torch.tensor([1, 1, 0])
    caches = KeyValueCache(), KeyValueCache()
    made(x, caches[0], memory=memory, memory_cache=caches[1])
    for cache in caches:
        cache.reorder(order)
    step = normal(3, 1, 12, seed=3)
    got = made(step, caches[0], memory_cache=caches[1])
    full = made(torch.cat((x[order], step), 1), memory=memory[order])
    assert_close(got, full[:, 5:])


@each_across
def test_gradients_reach_the_memory_and_every_parameter(across):
    made, x, memory = reader(across), normal(1, 4, 12), normal(1, 5, 10, seed=1)
    x, memory = x.requires_grad_(), memory.requires_grad_()
    names = [name for name, _ in made.named_parameters()]

    def outputs(x, memory, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(made, values, (x,), {"memory": memory})

    leaves = (x, memory, *made.parameters())
    assert torch.autograd.gradcheck(outputs, leaves, fast_mode=True)
    for leaf in torch.autograd.grad(outputs(*leaves).square().sum(), leaves):
        assert leaf.abs().sum() > 0


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@each_across
@pytest.mark.costly(4, of="compiled models")
def test_compiles_without_a_graph_break_at_any_length(across):
    made = reader(across)

    def run(x, memory):
        return made(x, memory=memory)

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="eager")
    for i, j in ((5, 7), (33, 9), (4, 65)):
        inputs = normal(2, i, 12), normal(2, j, 10, seed=1)
        assert_close(compiled(*inputs), run(*inputs))


def test_without_cross_the_state_has_no_trace_of_it():
    assert not [name for name in block().state_dict() if "cross" in name]
    names = [name for name in reader(ACROSS["none"]).state_dict() if "cross" in name]
    assert names[:2] == ["cross_norm.weight", "cross_norm.bias"]
    made = reader(ACROSS["shaw"])
    other = copy.deepcopy(made)
    torch.nn.init.zeros_(other.cross_norm.weight)
    other.load_state_dict(made.state_dict())
    x, memory = normal(2, 3, 12), normal(2, 7, 10)
    assert_close(other(x, memory=memory), made(x, memory=memory))


def test_a_memory_that_is_missing_or_not_wanted_is_named_and_no_cache_grows():
    x, memory, caches = normal(2, 3, 12), normal(2, 7, 10), (KeyValueCache(), KeyValueCache())
    with pytest.raises(ValueError, match="DecoderBlock: memory must be given to a block with"):
        reader(ACROSS["none"])(x, caches[0], memory_cache=caches[1])
    for given_ in ({"memory": memory}, {"memory_cache": caches[1]}):
        with pytest.raises(ValueError, match="DecoderBlock: memory must be None without cross"):
            block()(x, caches[0], **given_)
    assert caches[0].length == caches[1].length == 0


@pytest.mark.no_typecheck
def test_a_memory_that_does_not_fit_is_named_and_no_cache_grows():
    made, x, memory = reader(ACROSS["none"]), normal(2, 3, 12), normal(2, 7, 10)
    caches = KeyValueCache(), KeyValueCache()
    with pytest.raises(relpos.ShapeError, match=r"memory must be .* with b=2, kdim=10, got"):
        made(x, caches[0], memory=normal(2, 7, 12))
    assert caches[0].length == 0
    made(x, caches[0], memory=memory, memory_cache=caches[1])
    with pytest.raises(relpos.ShapeError, match=r"memory must be .* with b=2, j=7, kdim=10, got"):
        made(x, caches[0], memory=memory[:, :6], memory_cache=caches[1])
    mask = torch.zeros(2, 6, dtype=torch.bool)
    with pytest.raises(relpos.ShapeError, match=r"padding_mask must be .* with b=2, j=7, got"):
        made(x, caches[0], memory_key_padding_mask=mask, memory_cache=caches[1])
    assert [cache.length for cache in caches] == [3, 7]


def test_a_cross_attention_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="DecoderBlock: cross must have embed_dim=12, got 8"):
        block(cross=MultiheadAttention(8, 2))
    with pytest.raises(ValueError, match=r"cross must have kdim equal to vdim, .* got 10 and 12"):
        block(cross=MultiheadAttention(12, 3, kdim=10))


def test_attention_that_is_not_batch_first_is_refused():
    other = MultiheadAttention(12, 3, batch_first=False)
    with pytest.raises(ValueError, match="EncoderBlock: attention must have batch_first=True"):
        EncoderBlock(other)
    with pytest.raises(ValueError, match="DecoderBlock: attention must have batch_first=True"):
        DecoderBlock(other)
    with pytest.raises(ValueError, match="DecoderBlock: cross must have batch_first=True"):
        block(cross=other)


def test_one_cache_for_both_parts_is_refused():
    made, cache = reader(ACROSS["none"]), KeyValueCache()
    with pytest.raises(ValueError, match="memory_cache must be another cache than cache, got the"):
        made(normal(2, 3, 12), cache, memory=normal(2, 7, 10), memory_cache=cache)
    assert cache.length == 0


@pytest.mark.parametrize("make", [block, encoder])
def test_packed_documents_are_as_if_alone(make):
    layer, x = make(), normal(1, 12, 12)
    documents = relpos.document_ids(torch.tensor([0, 5, 12]), 12)
    got = layer(x, documents=documents)
    for part in (slice(0, 5), slice(5, 12)):
        assert_close(got[:, part], layer(x[:, part]))


def test_packed_documents_read_what_of_the_memory_is_theirs():
    made = reader(ACROSS["none"])
    x, memory = normal(1, 12, 12), normal(1, 9, 10, seed=1)
    packed = {
        "documents": relpos.document_ids(torch.tensor([0, 5, 12]), 12),
        "memory_documents": relpos.document_ids(torch.tensor([0, 7, 9]), 9),
    }
    got = made(x, memory=memory, **packed)
    for part, of_memory in ((slice(0, 5), slice(0, 7)), (slice(5, 12), slice(7, 9))):
        assert_close(got[:, part], made(x[:, part], memory=memory[:, of_memory]))
    # In steps, with what was projected before.
    caches, parts = (KeyValueCache(), KeyValueCache()), []
    for start, end in ((0, 4), (4, 9), (9, 12)):
        given = {"memory": memory} if start == 0 else {}
        documents = packed | {"documents": packed["documents"][:, :end]}
        parts.append(made(x[:, start:end], caches[0], memory_cache=caches[1], **given, **documents))
    assert_close(torch.cat(parts, 1), got)


def test_documents_of_a_memory_without_those_of_its_readers_are_named():
    x, documents = normal(1, 3, 12), torch.zeros(1, 7, dtype=torch.int64)
    with pytest.raises(ValueError, match="memory_documents must come with documents, those of x,"):
        reader(ACROSS["none"])(x, memory=normal(1, 7, 10), memory_documents=documents)
    with pytest.raises(ValueError, match="memory_documents must be None without cross, got"):
        block()(x, documents=documents[:, :3], memory_documents=documents)


def test_a_cross_with_offsets_takes_packed_rows_that_lie_alike():
    made, x, memory = reader(ACROSS["shaw"]), normal(1, 9, 12), normal(1, 9, 10, seed=1)
    documents = relpos.document_ids(torch.tensor([0, 5, 9]), 9)
    got = made(x, memory=memory, documents=documents, memory_documents=documents)
    for part in (slice(0, 5), slice(5, 9)):
        assert_close(got[:, part], made(x[:, part], memory=memory[:, part]))
    with pytest.raises(ValueError, match=r"must be documents itself.*another beside Shaw and None"):
        made(x, memory=memory, documents=documents, memory_documents=documents.clone())


@pytest.mark.no_typecheck
def test_wrong_documents_of_a_memory_are_named_and_leave_the_caches_as_they_were():
    made, x, caches = reader(ACROSS["none"]), normal(1, 3, 12), (KeyValueCache(), KeyValueCache())
    of_x = torch.zeros(1, 3, dtype=torch.int64)
    for wrong, error, words in (
        (torch.zeros(1, 6).long(), relpos.ShapeError, r"must be \(b, m\) with .* m=7, got \(1, 6"),
        (torch.zeros(1, 7), relpos.ShapeError, "must be integers, got torch.float32"),
        ([[0] * 7], TypeError, "must be a tensor, got list"),
    ):
        with pytest.raises(error, match=f"DecoderBlock: memory_documents {words}"):
            made(
                x, caches[0], memory=normal(1, 7, 10), memory_cache=caches[1], documents=of_x,
                memory_documents=wrong,
            )  # fmt: skip
    assert [cache.length for cache in caches] == [0, 0]


@pytest.mark.parametrize("make", [EncoderBlock, DecoderBlock])
def test_norms_and_mlp_have_the_dtype_and_device_of_the_attention(make):
    layer = make(MultiheadAttention(12, 3, dtype=torch.float64))
    x = normal(2, 5, 12)
    assert layer(x).dtype == torch.float64
    layer = make(MultiheadAttention(12, 3, device="meta", dtype=torch.bfloat16))
    kinds = {(numbers.device.type, numbers.dtype) for numbers in layer.parameters()}
    assert kinds == {("meta", torch.bfloat16)}


@pytest.mark.no_typecheck
@pytest.mark.parametrize("make", [EncoderBlock, DecoderBlock])
@pytest.mark.parametrize("hidden", [0, -1, 1.5, "4"])
def test_a_hidden_width_that_is_none_is_named(make, hidden):
    words = f"{make.__name__}: hidden must be an integer >= 1, got {hidden!r}"
    with pytest.raises(ValueError, match=words):
        make(MultiheadAttention(12, 3), hidden=hidden)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("make", [EncoderBlock, DecoderBlock])
def test_what_is_no_attention_and_no_probability_is_named(make):
    attention, name = MultiheadAttention(12, 3), make.__name__
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    for other in (None, theirs):
        with pytest.raises(TypeError, match=f"{name}: attention must be a relpos.layers.Multihead"):
            make(other)
    for rate in (1.5, float("nan"), None):
        with pytest.raises(ValueError, match=f"{name}: dropout must be in 0 <= dropout < 1, got"):
            make(attention, dropout=rate)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("shape", [(2, 5, 11), (2, 12), (2, 12, 5)])
@pytest.mark.parametrize("made", [block(), encoder()], ids=["decoder", "encoder"])
def test_an_input_of_another_shape_is_named(made, shape):
    words = rf"{type(made).__name__}: x must be \(b, i, e\) with e=12, got"
    with pytest.raises(relpos.ShapeError, match=words):
        made(torch.zeros(shape, dtype=torch.float64))
