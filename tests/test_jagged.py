"""Jagged nested tensors: each sequence gets what it gets alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import relpos
from relpos import GridTerms, OffsetTable, Terms, attention
from relpos.jagged import documents_of
from relpos.layers import DecoderBlock, EncoderBlock, KeyValueCache, MultiheadAttention
from relpos.positions import AbsoluteKeys, Huang, Rotary, Shaw, T5Bias, TransformerXL
from tests.factories import normal

pytestmark = [
    # torch's own, of a prototype.
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]

LENGTHS, OTHERS = (3, 1, 7), (5, 4, 2)


def sequences(lengths=LENGTHS, width=16) -> list[Tensor]:
    return [normal(n, width, seed=10 * n) for n in lengths]


def jagged(parts: list[Tensor]) -> Tensor:
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 8)).transpose(1, 2)


def layer_of(position: nn.Module | None = None, **options) -> MultiheadAttention:
    torch.manual_seed(0)
    return MultiheadAttention(16, 2, position=position, **options).double()


TERMS = {
    "none": Terms(),
    "bias": Terms(bias=OffsetTable(normal(2, 9, seed=3), -4)),
    "keys and values": Terms(
        keys=OffsetTable(normal(1, 5, 8, seed=4), -2), values=OffsetTable(normal(1, 5, 8), -2)
    ),
}


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (2, 1), "softcap": 3.0}])
@pytest.mark.parametrize("terms", TERMS.values(), ids=list(TERMS))
def test_the_op_gives_each_sequence_what_it_gets_alone(terms: Terms, options: dict):
    q = heads(jagged(sequences()))
    got, lse = attention(q, q, q, terms, return_lse=True, **options)
    assert got.shape == q.shape
    assert lse.shape == q.shape[:3]
    for x, found, found_lse in zip(q.unbind(), got.unbind(), lse.unbind(), strict=True):
        want, want_lse = attention(x[None], x[None], x[None], terms, return_lse=True, **options)
        assert_close(found, want[0])
        assert_close(found_lse, want_lse[0])


def test_the_op_agrees_with_torchs_own_and_can_be_padded():
    x = jagged(sequences())
    q, k, v = (heads(y) for y in (x, x.sin(), x.cos()))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    padded = [
        torch.nested.to_padded_tensor(x.transpose(1, 2).flatten(2), 0.0)
        for x in (attention(q, k, v), want)
    ]
    assert padded[0].shape == (3, 7, 16)
    assert_close(*padded)


def test_queries_of_other_lengths_read_their_own_sequence():
    q, k = heads(jagged(sequences())), heads(jagged(sequences(OTHERS)))
    for found, x, y in zip(attention(q, k, k).unbind(), q.unbind(), k.unbind(), strict=True):
        assert_close(found, attention(x[None], y[None], y[None])[0])


POSITIONS = {
    "none": lambda: None, "shaw": lambda: Shaw(8, 3, 2), "rotary": lambda: Rotary(8),
    "t5": lambda: T5Bias(2), "huang": lambda: Huang(8, 4), "xl": lambda: TransformerXL(8, 2),
}  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", POSITIONS.values(), ids=list(POSITIONS))
def test_a_layer_gives_each_sequence_what_it_gets_alone(position, causal: bool):
    layer, parts = layer_of(position()), sequences()
    leaves = [x.clone().requires_grad_() for x in parts]
    # Made of leaves, so that each has its gradient.
    x = torch.nested.as_nested_tensor(leaves, layout=torch.jagged)
    got, weights = layer(x, x, x, need_weights=False, is_causal=causal)
    assert weights is None
    got.values().square().sum().backward()
    for part, leaf, found in zip(parts, leaves, got.unbind(), strict=True):
        alone = part.requires_grad_()
        want = layer(alone, alone, alone, need_weights=False, is_causal=causal)[0]
        assert_close(found, want)
        (gradient,) = torch.autograd.grad(want.square().sum(), alone)
        assert leaf.grad is not None
        assert_close(leaf.grad, gradient)


@pytest.mark.parametrize("position", [None, T5Bias(2).double()])
def test_blocks_give_each_sequence_what_it_gets_alone(position: nn.Module | None):
    encoder = EncoderBlock(layer_of(position)).double()
    decoder = DecoderBlock(layer_of(position), cross=layer_of()).double()
    parts, others = sequences(), sequences(OTHERS)
    memory = encoder(jagged(others))
    got = decoder(jagged(parts), memory=memory)
    for found, x, y in zip(got.unbind(), parts, others, strict=True):
        assert_close(found, decoder(x[None], memory=encoder(y[None]))[0])


def test_of_a_slice_what_lies_between_is_nobodys():
    x = normal(2, 9, 16)
    begins, lengths = torch.tensor([0, 1]), torch.tensor([3, 4])
    part = torch.nested.narrow(x, 1, begins, lengths, layout=torch.jagged)
    nobodys = documents_of(part, axis=1)[0] < 0
    assert 0 < nobodys.sum() < len(nobodys)
    part.values()[nobodys] = torch.nan  # as memory that nobody has written to
    layer = layer_of(Shaw(8, 3))
    got = layer(part, part, part, need_weights=False)[0]
    of_heads = heads(part)
    for found, one in zip(attention(*3 * [of_heads]).unbind(), of_heads.unbind(), strict=True):
        assert_close(found, attention(*3 * [one[None]])[0])
    for found, one in zip(got.unbind(), part.unbind(), strict=True):
        assert_close(found, layer(one, one, one, need_weights=False)[0])


def test_empty_sequences_and_no_sequence_at_all():
    parts = [normal(0, 16), normal(2, 16), normal(0, 16)]
    layer = layer_of(Shaw(8, 3))
    none = torch.nested.nested_tensor_from_jagged(normal(0, 16), torch.tensor([0]))
    for x in (jagged(parts), jagged([normal(0, 16)]), none):
        got = layer(x, x, x, need_weights=False)[0]
        assert got.values().shape == x.values().shape
    x = jagged(parts)
    found = layer(x, x, x, need_weights=False)[0].unbind()[1]
    assert_close(found, layer(parts[1], parts[1], parts[1], need_weights=False)[0])


def test_slices_of_one_length_that_lie_elsewhere_are_not_taken_for_alike():
    row, lengths = normal(10, 16), torch.tensor([2, 3])
    x, y = (
        torch.nested.nested_tensor_from_jagged(row, torch.tensor(begins), lengths)
        for begins in ([0, 5, 8], [3, 7, 10])
    )
    layer = layer_of()
    for found, one, other in zip(
        layer(x, y, y, need_weights=False)[0].unbind(), x.unbind(), y.unbind(), strict=True
    ):
        assert_close(found, layer(one, other, other, need_weights=False)[0])
    with pytest.raises(relpos.ShapeError, match="value must be made with key's offsets"):
        layer(x, x, y, need_weights=False)


def test_grouped_heads_dropout_and_what_flows_back_through_the_log_sum_exp():
    parts = sequences()
    x = heads(jagged(parts))
    q = torch.cat([x, x.sin()], 1)
    leaf = q.detach().requires_grad_()
    got, lse = attention(leaf, x, x, TERMS["bias"].map(lambda y: y.repeat(2, 1)), return_lse=True)
    (got.values().sum() + lse.values().square().sum()).backward()
    for found, one, y in zip(leaf.grad.unbind(), q.unbind(), x.unbind(), strict=True):
        alone = one[None].detach().requires_grad_()
        terms = TERMS["bias"].map(lambda z: z.repeat(2, 1))
        want, want_lse = attention(alone, y[None], y[None], terms, return_lse=True)
        (want.sum() + want_lse.square().sum()).backward()
        assert_close(found, alone.grad[0])
    torch.manual_seed(0)
    dropped = attention(x, x, x, dropout=0.5)
    assert not torch.equal(dropped.values(), attention(x, x, x).values())
    torch.manual_seed(0)
    assert torch.equal(dropped.values(), attention(x, x, x, dropout=0.5).values())


def test_a_block_that_reads_itself_may_have_positions_there():
    block = DecoderBlock(layer_of(), cross=layer_of(Shaw(8, 3))).double()
    parts = sequences()
    x = jagged(parts)
    for found, one in zip(block(x, memory=x).unbind(), parts, strict=True):
        assert_close(found, block(one[None], memory=one[None])[0])


@pytest.mark.no_typecheck
@pytest.mark.slow
@pytest.mark.costly(4, of="compiled models")
def test_a_block_compiles_without_a_break():
    block = EncoderBlock(layer_of(Shaw(8, 3))).double()
    compiled = torch.compile(block, fullgraph=True, backend="eager")
    for lengths in (LENGTHS, (2, 9, 4, 1)):
        x = jagged(sequences(lengths))
        assert_close(compiled(x).values(), block(x).values())


@pytest.mark.no_typecheck
def test_what_does_not_go_with_nested_tensors_is_named():
    x, y, z = (jagged(sequences(n)) for n in (LENGTHS, OTHERS, (5, 6)))
    q, k = heads(x), heads(y)
    mask = torch.ones(3, 1, 1, 7, dtype=torch.bool)
    dense = normal(1, 2, 3, 8)
    for call, error, words in (
        (lambda: attention(q, q, q, mask=mask), ValueError, "attention: mask must be None with"),
        (lambda: attention(q, q, q, query_start=0), ValueError, "attention: query_start must be"),
        (lambda: attention(q, k, k, TERMS["bias"]), ValueError, "q must be made with k's offsets"),
        (lambda: attention(q, k, k, causal=True), ValueError, "q must be made with k's offsets"),
        (lambda: attention(q, q, k), relpos.ShapeError, "v must be made with k's offsets"),
        (lambda: attention(q, q, q, GridTerms((3,))), TypeError, "terms must be Terms with nested"),
        (lambda: attention(q, q, q, None), TypeError, "terms must be Terms with nested"),
        (
            lambda: attention(q, dense, dense), relpos.ShapeError,
            r"k must be \(b, g, j, d\), nested, .* lengths j, got \(1, 2, 3, 8\)",
        ),
        (
            lambda: attention(dense, k, k), relpos.ShapeError,
            "attention: k must be a dense tensor, got layout torch.jagged",
        ),
        (
            lambda: attention(*(3 * [x.unflatten(-1, (2, 8))])), relpos.ShapeError,
            r"q must be \(b, h, i, d\), nested, with sequences of their own lengths i, got a",
        ),
        (lambda: layer_of()(x, x, x), ValueError, "need_weights must be False with nested"),
        (
            lambda: layer_of()(x, x, x, mask[0, 0], need_weights=False), ValueError,
            "MultiheadAttention: key_padding_mask must be None with nested tensors",
        ),
        (
            lambda: layer_of(AbsoluteKeys(8, 20))(x, x, x, need_weights=False), ValueError,
            r"position must depend on offsets alone \(shift_invariant\) .* got AbsoluteKeys",
        ),
        (
            lambda: layer_of(Rotary(8))(x, y, y, need_weights=False), ValueError,
            "were not made with the same offsets .* position and window must be None",
        ),
        (
            lambda: layer_of(batch_first=False)(x, x, x, need_weights=False), ValueError,
            "batch_first must be True with nested tensors, got False",
        ),
        (
            lambda: EncoderBlock(layer_of())(x, documents=mask[0, 0].long()), ValueError,
            "EncoderBlock: documents must be None with nested tensors",
        ),
        (
            lambda: DecoderBlock(layer_of())(x, KeyValueCache()), ValueError,
            "DecoderBlock: cache must be None with nested tensors, .* got KeyValueCache",
        ),
        (
            lambda: DecoderBlock(layer_of(), cross=layer_of())(x, memory=normal(3, 4, 16)),
            relpos.ShapeError, r"DecoderBlock: memory must be \(b, m, kdim\), nested",
        ),
        (
            lambda: attention(q, heads(z), heads(z)), relpos.ShapeError,
            "attention: q must have as many sequences as k, got 3 and 2",
        ),
        (
            lambda: DecoderBlock(layer_of(), cross=layer_of())(x, memory=z), relpos.ShapeError,
            "DecoderBlock: memory must have as many sequences as x, got 2 and 3",
        ),
        (lambda: layer_of()(x, x, None), TypeError, "value must be a tensor, got NoneType"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()
