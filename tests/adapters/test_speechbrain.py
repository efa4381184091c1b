"""SpeechBrain's attention beside its adapted copy: masks, weights, and what runs as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from relpos.adapters import adapt
from tests.apart import import_apart
from tests.factories import normal

from .models.case import draw
from .results import original_and_adapted

# The original's softmax is in float32.
pytestmark = [pytest.mark.no_typecheck, pytest.mark.usefixtures("float64_stays_float64")]

X, POSITIONS = normal(2, 9, 32), normal(1, 17, 32)
PADDING = torch.arange(9) >= torch.tensor([[9], [6]])


def pair(**settings: Any) -> tuple[Any, Any]:
    module = import_apart("speechbrain.nnet.attention").RelPosMHAXL(32, 4, **settings)
    draw(module)
    return original_and_adapted(module.double().eval())


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def masks() -> dict[str, Tensor | None]:
    hidden = (torch.rand(8, 9, 9) > 0.6) & ~torch.eye(9, dtype=torch.bool)
    return {
        "none": None,
        "pairs": hidden[0],
        "pairs of heads": hidden,
        "pairs of heads of sequences": hidden.unflatten(0, (2, 4)),
        "added": normal(9, 9),
        "added to heads": normal(8, 9, 9),
        "causal": torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1),
        "a query without any key": torch.arange(9)[:, None].expand(9, 9) == 3,
    }


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("padding", [None, PADDING], ids=["", "padding"])
@pytest.mark.parametrize("settings", [{}, {"vbias": True}, {"mask_pos_future": True}])
def test_masks_hide_and_add_as_the_originals(
    name: str, padding: Tensor | None, settings: dict[str, bool]
):
    theirs, ours = pair(**settings)
    mask = masks()[name]
    given = {"key_padding_mask": padding, "attn_mask": mask, "return_attn_weights": True}
    expected = theirs(X, X, X, POSITIONS, **given)
    output, weights = ours(X, X, X, POSITIONS, **given)
    assert_same(output, expected[0])
    assert_same(weights, expected[1])


def test_weights_are_given_to_who_asks():
    _, ours = pair()
    output, weights = ours(X, X, X, POSITIONS)
    assert weights is None
    assert torch.equal(ours(X, X, X, POSITIONS, return_attn_weights=False), output)
    assert "None unless they are asked for" in str(adapt(pair()[0]))


def test_what_is_no_self_attention_runs_as_before():
    theirs, ours = pair()
    other = normal(2, 9, 32)
    for args in ((X, other, other), (X, X, other)):
        assert torch.equal(ours(*args, POSITIONS)[0], theirs(*args, POSITIONS)[0])
    each = normal(2, 17, 32)
    with pytest.raises(RuntimeError):
        theirs(X, X, X, each)
    with pytest.raises(RuntimeError):
        ours(X, X, X, each)
    numbers = torch.randint(-3, 3, (9, 9))
    given = {"attn_mask": numbers, "return_attn_weights": False}
    assert torch.equal(ours(X, X, X, POSITIONS, **given), theirs(X, X, X, POSITIONS, **given))


def test_a_size_of_values_that_the_original_refuses_is_left():
    module = import_apart("speechbrain.nnet.attention").RelPosMHAXL(32, 4, vdim=16)
    assert [reason for _, reason in adapt(module).left] == ["it runs with vdim=None alone"]


def test_a_decoder_takes_no_window():
    module = import_apart("speechbrain.nnet.attention").RelPosMHAXL(32, 4, mask_pos_future=True)
    with pytest.raises(ValueError, match="window must be None"):
        adapt(module, window=(2, 2))
    assert adapt(pair()[0], window=(2, 2)).adapted
