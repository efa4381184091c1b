"""MPNet with layers that are not adapted."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from relpos.adapters import adapt

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
