"""What layers and `logits` hand to a position: what it reads, and the scale that it needs."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from relpos import OffsetTable, ShapeError, Terms
from relpos.layers import GridAttention, KeyValueCache, MultiheadAttention
from relpos.positions import Alibi, Compose, GatedBias, Position, RelativeLogits, Rotary, Sinusoidal
from relpos.positions.handover import apply_position, check_position, resolve_scale
from tests.factories import normal

GIVEN = {"query_start": 3, "shape": (2, 4), "query_shape": (1, 4)}


class Scaled(Position):
    """Rows of ones, unscaled, for an attention of scale 0.3 and no other."""

    attention_scale = 0.3

    def forward(self, q, k):
        return q, k, Terms(keys=OffsetTable(q.new_ones(1, 1, q.shape[3]) / 0.3, first=0))


class Reading(nn.Module):
    """No subclass of `Position`; says what it reads, and keeps what it was given."""

    def __init__(self, *reads):
        super().__init__()
        self.got = None
        for name in reads:
            setattr(self, f"reads_{name}", True)

    def forward(self, q, k, *inputs, **more):
        self.got = (*inputs, more)
        return q, k, Terms()


def attention(position, **arguments):
    return MultiheadAttention(12, 3, position=position, **arguments).double()


@pytest.mark.parametrize("name", GIVEN)
def test_a_position_is_given_what_it_says_that_it_reads(name):
    q, x = normal(1, 3, 5, 4), normal(1, 5, 12)
    for reads, want in (((), ()), (("input",), (x,))):
        position = Reading(name, *reads)
        apply_position(position, q, q, x, **GIVEN)
        assert position.got == (*want, {name: GIVEN[name]})
    position = Reading()
    apply_position(position, q, q, x, **GIVEN)
    assert position.got == ({},)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (Terms(), r"Returning: must return \(q, k, terms\), got Terms\("),
        ((1, 2), r"Returning: must return \(q, k, terms\), got \(1, 2\)"),
        ((1, 2, {"keys": 3}), "terms that it returns must be Terms or GridTerms, got {'keys': 3}"),
    ],
)
def test_what_a_position_of_ones_own_must_return_is_said(returned, said):
    class Returning(nn.Module):
        def forward(self, q, k):
            return returned

    x = normal(1, 5, 12)
    for position in (Returning(), Compose(Rotary(4), Returning())):
        with pytest.raises(TypeError, match=said):
            attention(position)(x, x, x)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(("side", "number"), [("queries", 0), ("keys", 1)])
def test_a_position_keeps_all_tokens(side, number):
    class Dropping(nn.Module):
        def forward(self, *qk):
            return *(x[:, :, int(n == number) :] for n, x in enumerate(qk)), Terms()

    x = normal(1, 5, 12)
    words = rf"Dropping: the {side} that it returns must be of \(1, 3, 5\) .*, got \(1, 3, 4\)"
    with pytest.raises(ShapeError, match=words):
        attention(Dropping())(x, x, x)


def test_shapes_that_nobody_gives_are_left_out():
    q, position = normal(1, 3, 5, 4), Reading("query_start", "shape", "query_shape")
    apply_position(position, q, q)
    assert position.got == ({"query_start": None},)


@pytest.mark.parametrize("layer", [MultiheadAttention, GridAttention])
@pytest.mark.parametrize(
    ("position", "words"),
    [
        (nn.Linear(4, 4), r"be called as position\(q, k\), got Linear, which takes \(input\)"),
        (Position(), r"be called as position\(q, k\), got Position, which has no forward"),
        (Sinusoidal(12), "act on queries and keys, got Sinusoidal, which is added to the input"),
    ],
)
def test_what_is_no_position_is_refused_at_once(layer, position, words):
    with pytest.raises(TypeError, match=f"^{layer.__name__}: position must {words}"):
        layer(12, 3, position=position)


def test_functions_and_modules_that_take_anything_may_be_positions():
    def function(q, k):
        return q, k, Terms()

    compiled = torch.compile(Alibi(2), backend="eager")
    for position in (function, Reading(*GIVEN), compiled, torch.add):
        check_position("here", "position", position)


def test_no_position_changes_nothing():
    q, k = normal(1, 3, 5, 4), normal(1, 3, 7, 4)
    same_q, same_k, terms = apply_position(None, q, k)
    assert (same_q is q, same_k is k, terms.tables) == (True, True, {})


@pytest.mark.parametrize("pooled", [False, True])
def test_a_map_is_told_where_a_position_reads_it(pooled):
    position = Reading("shape", "query_shape", "query_start")
    pool = nn.AvgPool2d(2) if pooled else None
    GridAttention(12, 3, position=position, query_pool=pool)(torch.zeros(1, 12, 4, 6))
    more = {"query_shape": (2, 3)} if pooled else {}
    assert position.got == ({"query_start": None, "shape": (4, 6)} | more,)


def test_a_layer_takes_the_scale_that_its_position_needs():
    torch.manual_seed(0)
    layer, x = attention(Scaled()), normal(2, 5, 12)
    torch.manual_seed(0)
    told = attention(Scaled(), scale=0.3)
    assert_close(told(x, x, x), layer(x, x, x))
    assert layer.scale is None
    q, k, _ = (
        y.unflatten(-1, (3, 4)).transpose(1, 2) for y in (x @ layer.in_proj_weight.mT).chunk(3, -1)
    )
    scores = 0.3 * (q @ k.mT) + q.sum(-1, keepdim=True)
    assert_close(layer(x, x, x, average_attn_weights=False)[1], scores.softmax(-1))


def test_a_map_takes_the_scale_that_its_position_needs():
    torch.manual_seed(0)
    layer, x = GridAttention(12, 3, position=Scaled()).double(), normal(2, 12, 2, 3)
    torch.manual_seed(0)
    told = GridAttention(12, 3, position=Scaled(), scale=0.3).double()
    plain = GridAttention(12, 3).double()
    plain.load_state_dict(layer.state_dict())
    assert_close(told(x), layer(x))
    assert not torch.allclose(plain(x), layer(x))


@pytest.mark.parametrize("layer", [MultiheadAttention, GridAttention])
def test_another_scale_than_the_position_needs_is_refused(layer):
    words = rf"{layer.__name__}: scale must be None or 0\.3, as Scaled needs, got 0.5"
    with pytest.raises(ValueError, match=words):
        layer(12, 3, position=Scaled(), scale=0.5)
    made = layer(12, 3, scale=0.5)
    made.position = Scaled()
    inputs = [torch.zeros(1, 12, 3)] if layer is GridAttention else [torch.zeros(1, 3, 12)] * 3
    with pytest.raises(ValueError, match=words):
        made(*inputs)


def test_another_scale_that_was_given_later_grows_no_cache():
    layer, x, cache = attention(None, scale=0.5), normal(2, 5, 12), KeyValueCache()
    layer(x, x, x, is_causal=True, cache=cache)
    layer.position = Scaled()
    with pytest.raises(ValueError, match=r"scale must be None or 0\.3"):
        layer(x, x, x, is_causal=True, cache=cache)
    assert cache.length == 5


@pytest.mark.parametrize("layer", [MultiheadAttention, GridAttention])
@pytest.mark.parametrize(
    "make", [lambda: RelativeLogits(5, 3, 3, 12), lambda: GatedBias(Alibi(3), 3, 4)]
)
def test_a_scheme_that_assumes_the_default_scale_refuses_another(layer, make):
    name = type(make()).__name__
    words = rf"{layer.__name__}: scale must be None or 0\.5, as {name} needs, got 0.3"
    with pytest.raises(ValueError, match=words):
        layer(12, 3, position=make(), scale=0.3)
    with pytest.raises(ValueError, match=r"scale must be None or 0\.5, as Compose needs, got 0.3"):
        layer(12, 3, position=Compose(Rotary(4), make()), scale=0.3)
    assert layer(12, 3, position=make(), scale=0.5).scale == 0.5
    q, x = normal(1, 3, 5, 4).float(), normal(1, 5, 12).float()
    with pytest.raises(ValueError, match=rf"{name}.logits: scale must be None or 0\.5, as {name}"):
        make().logits(q, q, x, scale=0.3)


def test_the_same_scale_worked_out_in_two_ways_is_one():
    class Third(Scaled):
        attention_scale = 192**-0.5

    for scale in (1 / 192**0.5, float(torch.tensor(192.0).rsqrt())):
        assert resolve_scale("here", Third(), scale) == 192**-0.5
    with pytest.raises(ValueError, match=r"here: scale must be None or 0\.0721688, as Third"):
        resolve_scale("here", Third(), 0.0722)


def test_what_says_no_scale_goes_with_any():
    assert Position().attention_scale is None
    for position in (None, Position(), Reading(), lambda q, k: (q, k, Terms())):
        assert resolve_scale("here", position, None) is None
        assert resolve_scale("here", position, 0.5) == 0.5


def test_logits_use_the_scale_that_the_scheme_needs():
    q = normal(1, 3, 5, 4)
    want = q.sum(-1, keepdim=True).expand(-1, -1, -1, 5)
    assert_close(Scaled().logits(q, q), want)
    assert_close(Scaled().logits(q, q, scale=0.3), want)
    with pytest.raises(ValueError, match=r"Scaled.logits: scale must be None or 0.3, as Scaled"):
        Scaled().logits(q, q, scale=0.5)


def test_logits_without_the_input_that_is_read_are_refused():
    class Input(Position):
        reads_input = True

    q = normal(1, 3, 5, 4)
    with pytest.raises(ValueError, match=r"Input.logits: x must be given, .*, got None"):
        Input().logits(q, q)


@pytest.mark.parametrize("option", ["query_start", "key_start", "shape", "query_shape"])
@pytest.mark.parametrize("kind", [nn.Module, Position])
def test_a_scheme_that_takes_what_it_does_not_say_it_reads_is_refused(kind: type, option: str):
    names: dict[str, Any] = {}
    exec(f"def forward(self, q, k, *, {option}=None): ...", names)
    forgot = type("Forgot", (kind,), names)
    said = f"here: position must say reads_{option} = True where it takes {option}=, .* got Forgot"
    with pytest.raises(TypeError, match=said):
        check_position("here", "position", forgot())
    for answer in (True, False):
        says = type("Says", (forgot,), {f"reads_{option}": answer})
        check_position("here", "position", says())
    given = forgot()
    setattr(given, f"reads_{option}", False)
    check_position("here", "position", given)
    check_position("here", "position", partial(forgot(), **{option: None}))
