"""WavLM as its authors published it: what its attention takes that its model does not."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from relpos.adapters import adapt
from relpos.adapters.adaptations.s3prl import _of_all_pairs
from tests.apart import import_apart

from .models import BY_NAME
from .models.case import draw

pytestmark = [
    pytest.mark.no_typecheck,
    # Of the original.
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask"),
]

LENGTH, WIDTH, HEADS = 41, 32, 4
PADDING = torch.arange(LENGTH) >= torch.tensor([[41], [17]])
CASES = [BY_NAME["s3prl wavlm"], BY_NAME["s3prl wavlm, no gate"]]
both = pytest.mark.parametrize("case", CASES, ids=["gated", "ungated"])


def layers(case: Any, number: int = 0) -> tuple[Any, Any]:
    """An attention, of which the first makes the bias: the original and the adapted one."""
    model = case.model(torch.float64)
    ours = deepcopy(model)
    assert len(adapt(ours, strict=True).adapted) == 3
    name = f"model.encoder.layers.{number}.self_attn"
    return model.get_submodule(name), ours.get_submodule(name)


def frames() -> torch.Tensor:
    return torch.randn(LENGTH, 2, WIDTH, dtype=torch.float64)


@both
@pytest.mark.parametrize("added", [None, -torch.inf, -2.5])
def test_padding_is_hidden_or_added(case: Any, added: float | None):
    theirs, ours = layers(case)
    x, padding = frames(), PADDING
    if added is not None:
        padding = torch.zeros(2, LENGTH, dtype=torch.float64).masked_fill(PADDING, added)
    expected, weights, _ = theirs(x, x, x, padding)
    output, found, _ = ours(x, x, x, padding)
    assert_close(output, expected)
    assert_close(found, weights)
    assert not torch.equal(output, ours(x, x, x)[0])


@both
def test_weights_are_built_when_they_are_asked_for(case: Any):
    _, ours = layers(case)
    x = frames()
    assert ours(x, x, x, need_weights=False)[1] is None
    assert ours(x, x, x, need_weights=False, need_head_weights=True)[1] is not None


@both
def test_a_bias_of_all_pairs_is_taken_as_before(case: Any):
    x = frames()
    bias = torch.randn(2 * HEADS, LENGTH, LENGTH, dtype=torch.float64)
    theirs, ours = layers(case, 1)
    output, _, returned = ours(x, x, x, PADDING, position_bias=bias)
    assert_close(output, theirs(x, x, x, PADDING, position_bias=bias)[0])
    assert returned is bias


@both
def test_other_keys_have_the_positions_of_their_own_places(case: Any):
    theirs, ours = layers(case)
    x, y = frames(), frames()
    expected, found = theirs(x, y, y, PADDING), ours(x, y, y, PADDING)
    assert_close(found[:2], expected[:2])
    assert found[2].shape[0] == HEADS


@both
@pytest.mark.parametrize("dropped", [0, 3])
def test_a_table_is_handed_on_to_what_runs_as_before(case: Any, dropped: int):
    """`dropped` keys: more or fewer than queries the originals do not take with positions."""
    model = case.model(torch.float64)
    ours = deepcopy(model)
    adapt(ours)
    x = frames()
    names = [f"model.encoder.layers.{n}.self_attn" for n in range(2)]
    table = ours.get_submodule(names[0])(x, x, x)[2]
    bias = model.get_submodule(names[0])(x, x, x)[2]
    second, original = ours.get_submodule(names[1]), model.get_submodule(names[1])
    if dropped:
        for layer, positions in ((second, table), (original, bias)):
            with pytest.raises(RuntimeError):
                layer(x, x[dropped:], x[dropped:], position_bias=positions)
    with pytest.raises(AssertionError):
        second(x, x, x, attn_mask=torch.zeros(LENGTH, LENGTH), position_bias=table)
    assert_close(_of_all_pairs(table, x, x), bias)


@both
def test_what_fairseq_decodes_with_runs_as_before(case: Any):
    x = frames()
    for layer in layers(case, 1):
        with pytest.raises(AssertionError):
            layer(x, x, x, attn_mask=torch.zeros(LENGTH, LENGTH, dtype=torch.float64))
        with pytest.raises(AttributeError):  # of a part of fairseq that is not there
            layer(x, x, x, incremental_state={})


@both
def test_layers_behind_a_first_one_that_was_dropped_have_no_positions(case: Any):
    theirs, ours = layers(case, 1)
    x = frames()
    expected, _, none = theirs(x, x, x, PADDING)
    output, _, bias = ours(x, x, x, PADDING)
    assert_close(output, expected)
    assert none is None
    assert bias is None


@pytest.mark.parametrize("setting", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_are_no_tokens_are_left(setting: str):
    module = import_apart("s3prl.upstream.wavlm.modules").MultiheadAttention(
        WIDTH, HEADS, self_attention=True, has_relative_attention_bias=True, **{setting: True}
    )
    draw(module)
    (left,) = adapt(module).left
    assert "keys that are no tokens" in left[1]
