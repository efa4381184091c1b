"""torchaudio's WavLM: what its layers take that its model does not, beside the original."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from relpos.adapters import adapt

from .models import BY_NAME

# Of the original.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")

GATED, UNGATED = BY_NAME["torchaudio wavlm"], BY_NAME["torchaudio wavlm, no gate"]
LENGTH, WIDTH, HEADS = 41, 32, 4
COUNTS = torch.tensor([41, 17])
PADDING = torch.arange(LENGTH) >= COUNTS[:, None]


def layers(case: Any) -> tuple[Any, Any]:
    """The first layers' attention, which makes the bias: the original and the adapted one."""
    model = case.model(torch.float64)
    ours = deepcopy(model)
    adapt(ours)
    first = "model.encoder.transformer.layers.0.attention"
    return model.get_submodule(first), ours.get_submodule(first)


@pytest.mark.parametrize("case", [GATED, UNGATED], ids=["gated", "ungated"])
@pytest.mark.parametrize("added", [None, -torch.inf, -2.5])
def test_padding_is_hidden_or_added(case: Any, added: float | None):
    theirs, ours = layers(case)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    zeros = torch.zeros(2, LENGTH, dtype=torch.float64)
    padding = PADDING if added is None else zeros.masked_fill(PADDING, added)
    assert_close(ours(x, padding)[0], theirs(x, padding)[0])
    assert not torch.equal(ours(x, padding)[0], ours(x)[0])


@pytest.mark.parametrize("case", [GATED, UNGATED], ids=["gated", "ungated"])
def test_a_bias_of_all_pairs_is_taken_as_before(case: Any):
    theirs, ours = layers(case)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    bias = torch.randn(2, HEADS, LENGTH, LENGTH, dtype=torch.float64)
    output, returned = ours(x, PADDING, position_bias=bias)
    assert_close(output, theirs(x, PADDING, position_bias=bias)[0])
    assert returned is bias


def test_a_mask_is_refused_as_by_the_original():
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    for layer in layers(GATED):
        with pytest.raises(AssertionError):
            layer(x, attention_mask=torch.zeros(2, 1, LENGTH, LENGTH, dtype=torch.float64))


def test_layers_behind_a_first_one_that_was_dropped_have_neither_positions_nor_padding():
    """So that training with `encoder_layer_drop` goes on, with a window too."""
    model = GATED.model(torch.float64)
    ours, near = deepcopy(model), deepcopy(model)
    adapt(ours)
    adapt(near, window=(LENGTH, LENGTH))
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    name = "model.encoder.transformer.layers.1.attention"
    expected, none = model.get_submodule(name)(x, PADDING)
    assert none is None
    for adapted in (ours, near):
        output, bias = adapted.get_submodule(name)(x, PADDING)
        assert_close(output, expected)
        assert bias is None
