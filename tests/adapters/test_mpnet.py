"""MPNet with layers that are not adapted, and with masks that users make."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from relpos import ShapeError
from relpos.adapters import adapt
from relpos.adapters.masks import additive_mask

from .models.case import tokens
from .models.mpnet import CASES

pytestmark = pytest.mark.no_typecheck


@pytest.mark.parametrize("hooked", [(0,), (0, 1)])
def test_beside_layers_that_are_left_the_others_are_right(hooked: tuple[int, ...]):
    model: Any = CASES[0].model(torch.float64)
    inputs = tokens(2, 24, "right")
    theirs, _ = CASES[0].call(model, inputs)
    for n in hooked:
        attention = model.encoder.layer[n].attention.attn
        attention.forward = partial(attention.forward)
    report = adapt(model)
    assert len(report.left) == len(hooked)
    ours, _ = CASES[0].call(model, inputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_mask_of_pairs_hides_if_it_is_boolean_and_is_refused_if_it_is_of_integers():
    model: Any = CASES[0].model(torch.float64)
    ids = tokens(2, 24, "none")["input_ids"]
    mask = (torch.rand(2, 1, 24, 24) > 0.3) | torch.eye(24, dtype=torch.bool)
    theirs = model(ids, attention_mask=additive_mask(mask, torch.float64)).last_hidden_state
    adapt(model)
    ours = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    with pytest.raises(ShapeError, match=r"attention_mask of more .*, got torch.int64"):
        model(ids, attention_mask=mask.long())


class Wrapped(nn.Module):
    """An embedding without a tensor `weight`, as torch quantizes one."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids)


@pytest.mark.parametrize("given", ["input_ids", "inputs_embeds"])
def test_embeddings_need_no_weight(given: str):
    original: Any = CASES[0].model(torch.float64)
    inputs: dict[str, Any] = dict(tokens(2, 24, "right"))
    embedding = original.get_input_embeddings()
    original.set_input_embeddings(Wrapped(embedding))
    if given == "inputs_embeds":
        inputs["inputs_embeds"] = embedding(inputs.pop("input_ids"))
        original.set_input_embeddings(None)
    adapted = copy.deepcopy(original)
    adapt(adapted)
    real = inputs["attention_mask"].bool()
    ours, theirs = (model(**inputs).last_hidden_state[real] for model in (adapted, original))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
