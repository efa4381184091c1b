"""Gemma 4's audio encoder: its masks, its weights, and modules that are called by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma4AudioConfig, Gemma4AudioModel

from relpos.adapters import adapt

from .models.case import draw
from .models.gemma_audio import SIZES_4, inputs_4
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck


def gemma4(**options) -> nn.Module:
    torch.manual_seed(0)
    model = Gemma4AudioModel(Gemma4AudioConfig(**SIZES_4 | options))
    draw(model)
    return model.eval()


def masks(model: nn.Module, inputs: dict) -> list[Tensor]:
    """What the layers of a model are given."""
    found = []
    hook = model.layers[1].register_forward_pre_hook(
        lambda _, args, kwargs: found.append(kwargs["attention_mask"]), with_kwargs=True
    )
    model(**inputs)
    hook.remove()
    return found


def test_the_mask_has_one_row_for_all_queries():
    theirs, ours = (
        masks(model, inputs_4(2, 64, "right"))[0] for model in original_and_adapted(gemma4())
    )
    assert theirs.shape == (2, 1, 4, 5, 12)
    assert ours.shape == (2, 1, 1, 16)


@pytest.mark.parametrize("length", [60, 67])
@pytest.mark.parametrize("padding", ["none", "right"])
@pytest.mark.parametrize("right", [0, 3])
def test_weights_are_those_of_the_originals_blocks(length: int, padding: str, right: int):
    inputs = inputs_4(2, length, padding)
    theirs, ours = (
        model(**inputs, output_attentions=True).attentions
        for model in original_and_adapted(gemma4(attention_context_right=right))
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("blocked", [False, True])
def test_a_module_called_with_blocks_or_without_a_mask_is_the_original(blocked: bool):
    model, other = original_and_adapted(gemma4())
    x = torch.randn(2, 16, 32)
    mask = masks(model, inputs_4(2, 64, "right"))[0] if blocked else None
    theirs, ours = (m.layers[0].self_attn(x, m.rel_pos_enc(x), mask) for m in (model, other))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


def test_a_model_whose_attention_is_not_adapted_keeps_its_masks():
    model, other = original_and_adapted(gemma4())
    other.layers[0].self_attn.__class__ = type(model.layers[0].self_attn)
    inputs = inputs_4(2, 64, "right")
    theirs, ours = (m(**inputs).last_hidden_state for m in (model, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_frames_that_do_not_see_themselves_are_left_alone():
    model = gemma4(attention_context_left=1, attention_context_right=4)
    report = adapt(model)
    assert not report.adapted
    assert all("attention_context_left" in reason for _, reason in report.left)
    inputs = inputs_4(2, 64, "none")
    expected = gemma4(attention_context_left=1, attention_context_right=4)(**inputs)
    assert torch.equal(model(**inputs).last_hidden_state, expected.last_hidden_state)
