"""Inputs that are made up for a check: each model takes them."""

from __future__ import annotations

import pytest
import torch

from relpos_tasks.adapting import make_inputs
from tests.adapters.models import CASES
from tests.adapters.models.case import Case

pytestmark = pytest.mark.no_typecheck

PRETRAINED = [case for case in CASES if case.first and case.pretrained]
OTHERS = {"flattened_patches"}


@pytest.mark.parametrize("case", PRETRAINED, ids=lambda case: case.name)
def test_a_model_takes_the_inputs_that_are_made_for_it(case: Case):
    model = case.model()
    if model.main_input_name in OTHERS:
        with pytest.raises(ValueError, match=f"which reads {model.main_input_name}"):
            make_inputs(model, None)
        return
    length = None if model.main_input_name == "pixel_values" else 1200
    if model.main_input_name == "input_ids":
        length = 30
    inputs, words = make_inputs(model, length)
    assert length is None or words.startswith(f"{length} ")
    with torch.no_grad():
        outputs = model(**inputs)
    assert any(isinstance(x, torch.Tensor) for x in outputs.values())
