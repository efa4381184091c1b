"""`add_positions` takes the attention that is meant, says what it did, and is undone."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from relpos.adapters import add_positions, remove_positions
from relpos.positions import Alibi, Deberta, Grid, Rotary, T5Bias
from tests.adapters.torch_models import CROSS, SELF, Holder, shaw, transformer
from tests.factories import normal


def names(entries):
    return [name for name, _ in entries]


def test_self_attention_is_adapted_and_cross_attention_left():
    report = add_positions(transformer(), shaw)
    assert report.adapted == [(name, "Shaw") for name in SELF]
    assert report.left == [(name, "cross-attention, and cross_attention=False") for name in CROSS]


def test_cross_attention_is_adapted_if_asked_and_may_get_another_scheme():
    model = transformer()
    add_positions(model, shaw, include=SELF)
    report = add_positions(
        model, lambda heads, _: T5Bias(heads), include="*multihead_attn", cross_attention=True
    )
    assert report.adapted == [(name, "T5Bias, across") for name in CROSS]
    assert report.left == [(name, "not included") for name in SELF]
    out = model(normal(2, 7, 8), normal(2, 5, 8, seed=1))
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("patterns", "want"),
    [
        ({"include": "encoder.*"}, SELF[:2]),
        ({"include": ["encoder.*", "*.1.self_attn"]}, [*SELF[:2], SELF[3]]),
        ({"exclude": "decoder.*"}, SELF[:2]),
        ({"include": "*.0.*", "exclude": ("encoder.layers.[01].*",)}, [SELF[2]]),
    ],
    ids=str,
)
def test_patterns_choose_by_name(patterns, want):
    report = add_positions(transformer(), shaw, **patterns)
    assert names(report.adapted) == want
    assert sorted(names(report.adapted + report.left)) == sorted(SELF + CROSS)


def test_the_same_parameters_stay_under_the_same_names():
    model = transformer()
    before = dict(model.named_parameters())
    state = {name: x.clone() for name, x in model.state_dict().items()}
    add_positions(model, shaw)
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    new = {f"{name}.position.{table}" for name in SELF for table in ("keys", "values")}
    assert set(after) - set(before) == new == set(model.state_dict()) - set(state)
    assert_close({name: model.state_dict()[name] for name in state}, state, rtol=0, atol=0)


def test_removing_positions_gives_back_what_there_was_bit_for_bit():
    model, other = transformer(), transformer()
    given = normal(2, 7, 8), normal(2, 5, 8, seed=1)
    attributes = [dict(vars(model.get_submodule(name))) for name in SELF]
    add_positions(model, shaw)
    report = remove_positions(model)
    assert report.adapted == [(name, "Shaw") for name in SELF]
    assert repr(model) == repr(other)
    assert list(model.state_dict()) == list(other.state_dict())
    assert [dict(vars(model.get_submodule(name))) for name in SELF] == attributes
    assert torch.equal(model(*given), other(*given))
    assert remove_positions(model).adapted == []


def test_hooks_and_whoever_holds_the_module_stay():
    layer = nn.TransformerEncoderLayer(8, 2)
    held, seen = layer.self_attn, []
    held.register_forward_hook(lambda *_: seen.append(1))
    add_positions(layer, shaw)
    layer(torch.zeros(3, 8))
    assert layer.self_attn is held
    assert isinstance(held, nn.MultiheadAttention)
    assert seen == [1]


def test_a_module_in_two_places_is_adapted_once():
    attention = nn.MultiheadAttention(8, 2)
    model = Holder(first=attention, second=attention)
    report = add_positions(model, shaw, include="second")
    assert report.adapted == [("first", "Shaw, shared as 'second'")]
    with pytest.raises(ValueError, match="'first' excluded"):
        add_positions(Holder(first=attention, second=attention), shaw, exclude="second")


def test_one_scheme_given_to_several_is_shared():
    model, shared = transformer(), T5Bias(2)
    add_positions(model, lambda heads, head_dim: shared)
    assert sum(".position." in name for name, _ in model.named_parameters()) == 1
    other = copy.deepcopy(model)
    assert len({id(other.get_submodule(name).position) for name in SELF}) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_positions_have_the_dtype_and_the_mode_of_their_attention(dtype):
    layer = nn.MultiheadAttention(8, 2, dtype=dtype).eval()
    add_positions(layer, shaw)
    assert {table.dtype for table in layer.position.parameters()} == {dtype}
    assert not layer.position.training
    x = torch.ones(3, 8, dtype=dtype)
    assert layer(x, x, x)[0].dtype == dtype


def test_on_device_meta_positions_are_there_too():
    layer = nn.MultiheadAttention(8, 2, device="meta")
    report = add_positions(layer, shaw)
    assert report.adapted == [("", "Shaw, without memory yet (device meta), as its weights")]
    assert all(table.is_meta for table in layer.position.parameters())
    x = torch.ones(3, 8, device="meta")
    assert layer(x, x, x)[0].shape == (3, 8)


@pytest.mark.parametrize(
    "model",
    [
        Holder(cross_attn=nn.MultiheadAttention(8, 2)),
        Holder(cross=Holder(attn=nn.MultiheadAttention(8, 2))),
        Holder(attn=nn.MultiheadAttention(8, 2, kdim=6)),
        Holder(attn=nn.MultiheadAttention(8, 2, vdim=6)),
        Holder(self_attn=nn.Linear(1, 1), multihead_attn=nn.MultiheadAttention(8, 2, vdim=6)),
    ],
    ids=["name", "name of the holder", "keys", "values", "beside another"],
)
def test_cross_attention_is_known_by_its_name_or_its_widths(model):
    with pytest.raises(ValueError, match="cross-attention, and cross_attention=False"):
        add_positions(model, shaw)
    ((_, said),) = add_positions(model, shaw, cross_attention=True).adapted
    assert said == "Shaw, across"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda h, d: Alibi(h), "Alibi, changes the function: adds terms"),
        (lambda h, d: Rotary(d), "Rotary, changes the function: changes the queries or keys"),
        (
            lambda h, d: Deberta(d, h, 4),
            "Deberta, changes the function: scales the scores by 0.289",
        ),
        (lambda h, d: Grid(d, (3, 5), prefix=1), "Grid"),
    ],
)
def test_the_report_says_which_scheme_changes_the_function(make, said):
    assert add_positions(nn.MultiheadAttention(8, 2), make).adapted == [("", said)]


def test_tables_stay_as_they_were_made_if_asked():
    layer = nn.MultiheadAttention(8, 2)
    ((_, said),) = add_positions(layer, shaw, zero=False).adapted
    assert said == "Shaw, changes the function: adds terms"
    assert layer.position.keys.abs().min() > 0
