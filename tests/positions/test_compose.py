"""Schemes composed: each on what the one before returned, all terms together, or a refusal."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import relpos
from relpos import OffsetTable, Terms, definition
from relpos.layers import GridAttention, MultiheadAttention
from relpos.positions import (
    AbsoluteKeys,
    Alibi,
    AxialRotary,
    BiasPosition,
    Compose,
    ContinuousBias,
    Deberta,
    DebertaEmbedding,
    GatedBias,
    Grid,
    Huang,
    Kerple,
    LearnedAbsolute,
    NoPosition,
    RelativeLogits,
    Rotary,
    Sandwich,
    Shaw,
    Sinusoidal,
    T5Bias,
    TransformerXL,
    WindowBias,
    XPos,
)
from tests.factories import LENGTHS, judged, normal, qkv, table

D = torch.float64


def drawn(position):
    """With numbers large enough to be seen."""
    position = position.double()
    with torch.no_grad():
        for n, numbers in enumerate(position.parameters()):
            numbers.copy_(normal(*numbers.shape, seed=10 + n) / 2)
    return position


def attended(position, q, k, v, **arguments):
    q, k, terms = position(q, k)
    return relpos.attention(q, k, v, terms, scale=position.attention_scale, **arguments)


def tables(position):
    return {name: table(rows, position.first) for name, rows in position.named_parameters()}


each_length = pytest.mark.parametrize("lengths", LENGTHS)


@each_length
def test_rotary_and_shaws_values(lengths):
    shaw = drawn(Shaw(8, 3, 2, keys=False))
    q, k, v = qkv(*lengths, d=8)
    got = attended(Compose(Rotary(8), shaw), q, k, v, causal=True)
    turned_q, turned_k, _ = Rotary(8)(q, k)
    assert_close(got, judged(turned_q, turned_k, v, causal=True, **tables(shaw)))


@each_length
def test_t5_bias_and_huangs_keys(lengths):
    t5, huang = drawn(T5Bias(2, 8, 20)), drawn(Huang(8, 7, 2))
    q, k, v = qkv(*lengths, d=8)
    want = judged(q, k, v, mask=t5.dense(*lengths).detach().numpy(), causal=True, **tables(huang))
    for parts in ((t5, huang), (huang, t5)):
        assert_close(attended(Compose(*parts), q, k, v, causal=True), want)


@each_length
@pytest.mark.parametrize("causal", [False, True])
def test_biases_are_added_over_the_union_of_their_windows(lengths, causal):
    """T5's stops at 20 tokens, the others follow the call."""
    parts = [drawn(T5Bias(2, 8, 20)), Alibi(2, dtype=D), drawn(Kerple(2)), Sandwich(2, 8)]
    q, k, v = qkv(*lengths)
    bias = sum(part.dense(*lengths).double() for part in parts)
    want = judged(q, k, v, mask=bias.detach().numpy(), causal=causal)
    got = attended(Compose(*parts), q, k, v, causal=causal)
    # `dense` has float32.
    assert_close(got, want, rtol=0, atol=16 * torch.finfo(torch.float32).eps)


def test_rows_stay_with_the_queries_that_their_scheme_returned():
    shaw, rotary = drawn(Shaw(8, 3, values=False)), Rotary(8)
    q, k, v = qkv(5, 9, d=8)
    turned_q, turned_k, _ = rotary(q, k)
    keys = tables(shaw)["keys"]
    plain = judged(turned_q, turned_k, v, keys=keys, q_rel=q.numpy())
    assert_close(attended(Compose(shaw, rotary), q, k, v), plain)
    turned = judged(turned_q, turned_k, v, keys=keys)
    assert_close(attended(Compose(rotary, shaw), q, k, v), turned)
    assert (plain - turned).abs().max() > 1e-3


def test_each_scheme_is_given_what_the_one_before_returned():
    absolute, rotary = drawn(AbsoluteKeys(8, 20)), Rotary(8)
    q, k, v = qkv(5, 9, d=8)
    _, moved, _ = absolute(q, k)
    turned_q, turned_k, _ = rotary(q, moved)
    assert_close(attended(Compose(absolute, rotary), q, k, v), judged(turned_q, turned_k, v))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: Rotary(8), lambda: Alibi(2)),
        (lambda: XPos(8, scale_base=16.0), lambda: T5Bias(2, 8, 20, bidirectional=False)),
        (lambda: TransformerXL(8, 2), lambda: Alibi(2)),
        (lambda: Rotary(8), lambda: Deberta(8, 2, 16, position_buckets=4)),
        (lambda: Shaw(8, 3, 2), lambda: Kerple(2, "power")),
    ],
)
@pytest.mark.parametrize("start", [None, 2])
def test_the_logits_of_two_are_those_of_one_on_the_other(first, second, start):
    first, second = drawn(first()), drawn(second())
    q, k, _ = qkv(5, 9, d=8)
    both = Compose(first, second)
    scale = both.attention_scale
    moved = first(q, k, query_start=start) if first.reads_query_start else first(q, k)
    want = first.logits(q, k, scale=scale, query_start=start)
    want = want + second.logits(*moved[:2], scale=scale, query_start=start)
    assert_close(both.logits(q, k, query_start=start), want)


def test_nesting_and_no_position_change_nothing():
    parts = [drawn(Shaw(8, 3)), Rotary(8), drawn(T5Bias(2, 8, 20)), Alibi(2, dtype=D)]
    q, k, v = qkv(5, 9, d=8)
    want = attended(Compose(*parts), q, k, v)
    a, b, c, d = parts
    for nested in (
        Compose(Compose(a, b), Compose(c, d)),
        Compose(a, Compose(b, Compose(c, d))),
        Compose(Compose(Compose(a), NoPosition(), b), c, d, NoPosition()),
    ):
        assert_close(attended(nested, q, k, v), want)


def test_gates_read_the_input_and_the_bias_stands_beside_them():
    gated, alibi = drawn(GatedBias(T5Bias(2, 8, 20), 2, 8)), Alibi(2, dtype=D)
    q, k, _ = qkv(5, 9, d=8)
    x = normal(2, 5, 16)
    both = Compose(gated, alibi)
    assert both.reads_input
    assert both.reads_query_start
    want = gated.logits(q, k, x, query_start=3) + alibi.logits(q, k, query_start=3)
    assert_close(both.logits(q, k, x, query_start=3), want)


class Slope(nn.Module):
    """A scheme of one's own, which is no `Position` and says nothing of itself."""

    def forward(self, q, k):
        return q, k, Terms(bias=OffsetTable(torch.linspace(-1, 1, 7, dtype=q.dtype)[None], -3))


def test_any_module_may_be_a_part():
    q, k, _ = qkv(5, 9)
    at = (torch.arange(9) - torch.arange(4, 9)[:, None]).clamp(-3, 3)
    want = Alibi(2, dtype=D).logits(q, k) + at / 3
    assert_close(Compose(Slope(), Alibi(2, dtype=D)).logits(q, k), want)


def test_only_what_a_part_reads_is_asked_for():
    both = Compose(Shaw(8, 3), NoPosition())
    flags = ("reads_input", "reads_query_start", "reads_shape", "reads_query_shape")
    assert [getattr(both, flag) for flag in flags] == [False] * 4
    both = Compose(Alibi(2), WindowBias(2, (3, 4)))
    assert [getattr(both, flag) for flag in flags] == [False, True, True, False]
    both = Compose(NoPosition(), AxialRotary(8, (3, 4)), Grid(8, (3, 4)))
    assert [getattr(both, flag) for flag in flags] == [False, False, True, True]


class Boastful(nn.Module):
    """A scheme that says that it reads what its forward does not take."""

    reads_input = True
    reads_query_start = True

    def forward(self, q, k):
        return q, k, Terms()


# Two tables of one kind, and keys that change below rows that are for them.
REFUSED = [
    ((Shaw(8, 3), Huang(8, 7)), "have at most one table of keys between them, got two"),
    (
        (Shaw(8, 3), Shaw(8, 3, keys=False)),
        "have at most one table of values between them",
    ),
    ((Compose(Rotary(8), Shaw(8, 3)), TransformerXL(8, 2)), "have at most one table of keys"),
    ((Deberta(8, 2, 16), Rotary(8)), "come in an order in which none changes the keys after"),
    ((Alibi(2), WindowBias(2, (3, 3))), "all have terms of a sequence, or all of a"),
    ((Grid(8, (3, 3)), WindowBias(2, (9, 1))), "all have terms of the same grid"),
    ((Grid(8, (3, 3)), Grid(8, (3, 3))), "have at most one table of keys"),
]


@pytest.mark.parametrize(("parts", "named"), REFUSED)
def test_what_cannot_be_joined_is_named_when_it_is_called(parts, named):
    q, k, _ = (x.float() for x in qkv(9, 9, d=8))
    with pytest.raises(ValueError, match=f"Compose: positions must {named}"):
        Compose(*parts)(q, k)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ((), "positions must be at least one, got none"),
        ((Rotary(8), None), r"positions must be modules, got NoneType; NoPosition\(\) stands for"),
        ((Rotary,), "positions must be modules, got type"),
        (([Rotary(8)],), "positions must be modules, got list"),
        (
            (Rotary(8), nn.Linear(3, 3)),
            r"positions must be called as position\(q, k\), got Linear, which takes \(input\)",
        ),
        ((nn.Sequential(Rotary(8)),), r"called as position\(q, k\), got Sequential, which takes"),
        ((nn.ModuleList([Rotary(8)]),), r"position\(q, k\), got ModuleList, which has no forward"),
        ((DebertaEmbedding(8, 4),), r"position\(q, k\), got DebertaEmbedding, which takes \(\)"),
        ((Boastful(),), r"called as position\(q, k, x, query_start=\), got Boastful, .* \(q, k\)"),
        ((lambda q, k: (q, k, Terms()),), "positions must be modules, got function"),
        (
            (Sinusoidal(8), Rotary(8)),
            "must act on queries and keys, got Sinusoidal, which is added",
        ),
        ((LearnedAbsolute(8, 9),), "must act on queries and keys, got LearnedAbsolute"),
        (
            (TransformerXL(16, 2), Alibi(2), ContinuousBias(2, (3, 3))),
            "must need the same scale of attention, got TransformerXL 0.25, ContinuousBias 1",
        ),
        (
            (GatedBias(T5Bias(2), 2, 8), ContinuousBias(2, (3, 3))),
            "GatedBias must be given scale=1, which another of the positions needs, got None",
        ),
        (
            (RelativeLogits(7, 3, 2, 16), Deberta(8, 2, 16, c2p=False)),
            "RelativeLogits must be given scale=0.25, which another of the positions needs, got",
        ),
        (
            (ContinuousBias(2, (3, 3)), Compose(GatedBias(T5Bias(2), 2, 8), Rotary(8))),
            "GatedBias must be given scale=1",
        ),
        (
            (XPos(8), Alibi(2), Shaw(8, 3)),
            "none behind XPos reads .*, got Shaw there; put XPos last",
        ),
        ((Compose(Alibi(2), XPos(8)), Rotary(8)), "got Rotary there; put Compose last"),
    ],
)
def test_what_does_not_belong_together_is_named_at_once(parts, named):
    with pytest.raises((TypeError, ValueError), match=f"Compose: .*{named.removeprefix('pos')}"):
        Compose(*parts)


def test_a_layer_takes_the_scale_that_one_part_needs():
    position = Compose(Alibi(2), Deberta(8, 2, 16), GatedBias(T5Bias(2), 2, 8, scale=24**-0.5))
    assert position.attention_scale == pytest.approx(24**-0.5)
    with pytest.raises(ValueError, match=r"MultiheadAttention: scale must be None or 0\.204"):
        MultiheadAttention(16, 2, position=position, scale=1.0)
    assert Compose(Rotary(8), Alibi(2)).attention_scale is None


def test_state_dicts_have_the_number_of_the_part():
    position = Compose(Rotary(8), drawn(Shaw(8, 3)), Compose(drawn(T5Bias(2)), Alibi(2)))
    names = ["positions.1.keys", "positions.1.values", "positions.2.positions.0.bias"]
    assert list(position.state_dict()) == names
    other = Compose(Rotary(8), Shaw(8, 3), Compose(T5Bias(2), Alibi(2))).double()
    other.load_state_dict(position.state_dict())
    q, k, v = qkv(5, 9, d=8)
    assert torch.equal(attended(other, q, k, v), attended(position, q, k, v))


def test_layers_may_share_a_part():
    bias = T5Bias(2)
    layers = nn.ModuleList(Compose(Rotary(8), bias) for _ in range(3))
    assert [name for name, _ in layers.named_parameters()] == ["0.positions.1.bias"]


def test_the_same_part_twice_acts_twice():
    q, k, _ = qkv(5, 9, d=8)
    alibi = drawn(Alibi(2, learned=True))
    twice = Compose(alibi, alibi)
    assert_close(twice.logits(q, k), 2 * alibi.logits(q, k))
    assert len(list(twice.parameters())) == 1
    rotary = Rotary(8)
    assert_close(Compose(rotary, rotary)(q, k)[:2], rotary(*rotary(q, k)[:2])[:2])


def test_a_part_that_stands_twice_is_one_in_copies_and_state_dicts():
    alibi = Alibi(2, learned=True)
    twice = Compose(alibi, Compose(alibi, Rotary(8)))
    copied = copy.deepcopy(twice)
    assert copied.positions[0] is copied.positions[1].positions[0]
    with torch.no_grad():
        alibi.log2_slopes.add_(1)
    copied.load_state_dict(twice.state_dict())
    assert torch.equal(copied.positions[0].log2_slopes, alibi.log2_slopes)


def grid_judged(q, k, v, shape, **arguments):
    output, _ = definition.grid_attention(
        *(x.detach().numpy() for x in (q, k, v)), shape=shape, **{"axes": ()} | arguments
    )
    return torch.from_numpy(output)


def test_joint_biases_of_a_window_are_added_to_turned_queries():
    window, continuous = (
        drawn(WindowBias(2, (3, 4))),
        drawn(ContinuousBias(2, (3, 4), hidden=8, cosine=False)),
    )
    axial = AxialRotary(8, (3, 4))
    for shape in ((3, 4), (2, 5)):
        n = shape[0] * shape[1]
        q, k, v = qkv(n, n, d=8)
        joint = (
            window(q, k, shape=shape)[2].joint_bias + continuous(q, k, shape=shape)[2].joint_bias
        )
        turned_q, turned_k, _ = axial(q, k, shape=shape)
        want = grid_judged(turned_q, turned_k, v, shape, joint_bias=joint.detach().numpy())
        moved_q, moved_k, terms = Compose(axial, window, continuous)(q, k, shape=shape)
        assert_close(relpos.attention(moved_q, moved_k, v, terms), want)


def test_a_grid_of_keys_stays_with_its_queries_under_cosines():
    grid, cosines = drawn(Grid(8, (3, 4))), drawn(ContinuousBias(2, (3, 4), hidden=8))
    q, k, v = qkv(12, 12, d=8)
    unit_q, unit_k, terms = cosines(q, k)
    axes = [
        definition.Axis(keys=table(rows, -(rows.shape[1] // 2)), q_rel=q.numpy())
        for rows in grid.keys
    ]
    joint = terms.joint_bias.detach().numpy()
    want = grid_judged(unit_q, unit_k, v, (3, 4), axes=axes, joint_bias=joint, scale=1.0)
    assert_close(attended(Compose(grid, cosines), q, k, v), want)


def test_pooled_queries_need_parts_that_all_know_their_grid():
    pool = nn.AvgPool2d(2, ceil_mode=True)
    x = normal(2, 16, 3, 5)
    position = Compose(NoPosition(), AxialRotary(8, (3, 5)), drawn(Grid(8, (3, 5))))
    layer = GridAttention(16, 2, position=position, query_pool=pool).double()
    assert layer(x).shape == (2, 16, 2, 3)
    with pytest.raises(ValueError, match="GridAttention: position must have reads_query_shape"):
        GridAttention(16, 2, position=Compose(position, Rotary(8)), query_pool=pool)


def test_a_bias_position_of_ones_own_is_composed():
    class Same(BiasPosition):
        def table(self, i, j):
            return OffsetTable(torch.ones(1, 1, dtype=D), 0, "zero")

    q, k, _ = qkv(5, 9)
    want = Alibi(2, dtype=D).logits(q, k)
    got = Compose(Same(), Alibi(2, dtype=D)).logits(q, k)
    assert_close(got - want, torch.eye(9, dtype=D)[4:].expand(2, 2, -1, -1))


def test_repr_lists_the_parts():
    told = repr(Compose(Rotary(8), Alibi(2)))
    assert "Rotary(head_dim=8, theta=10000)" in told
    assert "Alibi(heads=2, causal=False)" in told
