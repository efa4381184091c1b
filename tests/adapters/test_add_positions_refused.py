"""What `add_positions` cannot take is left or refused, in words, and the model is as it was."""

import re
from functools import partial

import accelerate
import peft
import pytest
import torch
from torch import nn

from relpos.adapters import add_positions, remove_positions
from relpos.adapters.multihead.attention import AttentionWithPosition
from relpos.positions import LearnedAbsolute, Shaw, T5Bias
from tests.adapters.torch_models import CROSS, SELF, Holder, shaw, transformer


class Subclass(nn.MultiheadAttention):
    pass


def parametrized():
    attention = nn.MultiheadAttention(8, 2)
    nn.utils.parametrize.register_parametrization(attention, "in_proj_weight", nn.Identity())
    return attention


def hooked():
    attention = nn.MultiheadAttention(8, 2)
    attention.forward = partial(attention.forward)
    return attention


def wrapped():
    attention = nn.MultiheadAttention(8, 2)
    attention.out_proj = nn.utils.parametrizations.weight_norm(attention.out_proj)
    return attention


def owner():
    attention = nn.MultiheadAttention(8, 2)
    attention.position = 3
    return attention


def with_position():
    attention = nn.MultiheadAttention(8, 2)
    add_positions(attention, shaw)
    return attention


def of_integers():
    attention = nn.MultiheadAttention(8, 2)
    for module in attention.modules():
        for name, parameter in module.named_parameters(recurse=False):
            integers = nn.Parameter(parameter.detach().to(torch.int8), requires_grad=False)
            setattr(module, name, integers)
    return attention


def with_lora_of_a_part():
    attention = nn.MultiheadAttention(8, 2)
    # Torch never calls it, so that this LoRA would begin to act.
    peft.get_peft_model(attention, peft.LoraConfig(target_modules=["out_proj"]))
    return attention


def with_dropout(dropout):
    attention = nn.MultiheadAttention(8, 2)
    attention.dropout = dropout
    return attention


class Packed(torch.Tensor):
    pass


def of_packed_numbers():
    attention = nn.MultiheadAttention(8, 2)
    attention.in_proj_weight = nn.Parameter(torch.ones(24, 8).as_subclass(Packed))
    return attention


NOT_TAKEN = {
    "has weights of class Packed": of_packed_numbers,
    "has add_bias_kv=True": lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
    "has add_zero_attn=True": lambda: nn.MultiheadAttention(8, 2, add_zero_attn=True),
    r"is a subclass, tests\..*\.Subclass": lambda: Subclass(8, 2),
    r"is a subclass, torch\.ao\.nn\.quantizable": lambda: (
        torch.ao.nn.quantizable.MultiheadAttention(8, 2)
    ),
    "is a subclass, .*Parametrized": parametrized,
    "has a forward of its own .*accelerate": hooked,
    "has an out_proj of another class, .*Parametrized": wrapped,
    r"has an out_proj of another class, peft\.tuners.*Linear": with_lora_of_a_part,
    "has an attribute `position` of its own": owner,
    "has a position already, Shaw": with_position,
    r"has weights of torch\.int8": of_integers,
    r"has dropout=1\.0, not in 0 <= dropout < 1": lambda: nn.MultiheadAttention(8, 2, dropout=1.0),
    r"has dropout=nan, not in 0 <= dropout < 1": lambda: with_dropout(float("nan")),
    r"has dropout=None, not in 0 <= dropout < 1": lambda: with_dropout(None),
}


@pytest.mark.parametrize("reason", NOT_TAKEN)
def test_what_cannot_be_taken_is_left_with_the_reason(reason):
    attention = NOT_TAKEN[reason]()
    model = Holder(other=attention, plain=nn.MultiheadAttention(8, 2))
    kind, attributes = type(attention), dict(vars(attention))
    report = add_positions(model, shaw)
    assert [name for name, _ in report.adapted] == ["plain"]
    ((name, said),) = report.left
    assert name == "other"
    with pytest.raises(ValueError, match=f"model must have an attention to take, got '' {reason}"):
        add_positions(attention, shaw)
    assert re.match(reason, said)
    assert type(attention) is kind
    assert dict(vars(attention)) == attributes


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((3, shaw), TypeError, "add_positions: model must be an nn.Module, got int"),
        (
            (nn.Linear(2, 2), shaw),
            ValueError,
            r"model must have a torch.nn.MultiheadAttention, got Linear, which has none",
        ),
        ((transformer(), Shaw(4, 3)), TypeError, "position must be a function of .*, got Shaw"),
        ((transformer(), None), TypeError, "position must be a function of .*, got NoneType"),
        (
            (transformer(), lambda heads, head_dim: None),
            TypeError,
            "position must return a module, got NoneType",
        ),
        (
            (transformer(), lambda heads, head_dim: nn.Linear(3, 3)),
            TypeError,
            r"position must be called as position\(q, k\), got Linear",
        ),
        (
            (transformer(), lambda heads, head_dim: LearnedAbsolute(8, 9)),
            TypeError,
            "position must act on queries and keys, got LearnedAbsolute",
        ),
        (
            (transformer(), lambda heads, head_dim: Shaw(2 * head_dim, 3)),
            ValueError,
            r"position must fit heads=2 and head_dim=4 of 'encoder.layers.0.self_attn', got Shaw",
        ),
        (
            (transformer(), lambda heads, head_dim: T5Bias(3)),
            ValueError,
            r"position must fit heads=2 and head_dim=4 of .*, got T5Bias",
        ),
    ],
)
def test_errors_are_said_in_words(arguments, error, match):
    with pytest.raises(error, match=match):
        add_positions(*arguments)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("patterns", "error", "match"),
    [
        ({"include": "enc.*"}, ValueError, "include must match an attention, .*'encoder.layers.0"),
        ({"exclude": ["*", "enc.*"]}, ValueError, "exclude must match an attention.*got 'enc"),
        ({"include": []}, ValueError, "include must be None or hold a pattern"),
        ({"include": [3]}, TypeError, r"include must be a pattern or several, got \[3\]"),
        ({"include": 3}, TypeError, "include must be a pattern or several, got 3"),
        ({"exclude": "*"}, ValueError, "must have an attention to take.* excluded"),
    ],
    ids=str,
)
def test_patterns_that_mean_nothing_are_refused(patterns, error, match):
    model = transformer()
    with pytest.raises(error, match=match):
        add_positions(model, shaw, **patterns)
    assert {type(model.get_submodule(name)) for name in SELF + CROSS} == {nn.MultiheadAttention}


def test_an_error_at_the_last_attention_leaves_all_as_they_were():
    model = Holder(narrow=nn.MultiheadAttention(8, 2), wide=nn.MultiheadAttention(16, 2))
    with pytest.raises(ValueError, match="of 'wide'"):
        add_positions(model, lambda heads, head_dim: Shaw(4, 3))
    assert type(model.narrow) is type(model.wide) is nn.MultiheadAttention
    assert not hasattr(model.narrow, "position")


def test_hooks_must_go_before_positions_are_removed():
    model = nn.MultiheadAttention(16, 2)
    add_positions(model, lambda heads, head_dim: Shaw(head_dim, 2))
    accelerate.hooks.add_hook_to_module(model, accelerate.hooks.ModelHook())
    with pytest.raises(ValueError, match="got another in the model; remove accelerate's hooks"):
        remove_positions(model)
    assert hasattr(model, "position")
    accelerate.hooks.remove_hook_from_module(model)
    remove_positions(model)
    assert type(model) is nn.MultiheadAttention
    assert "forward" not in vars(model)


def test_a_position_that_holds_attention_is_refused():
    model = transformer()
    with pytest.raises(TypeError, match="position must return a scheme, got TransformerEncoder"):
        add_positions(model, lambda heads, head_dim: model.encoder)
    assert not any(isinstance(module, AttentionWithPosition) for module in model.modules())
