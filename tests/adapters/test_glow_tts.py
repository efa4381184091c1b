"""What the attention of VITS and Coqui has beside its tables, and the masks that it is given."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from relpos.adapters import adapt
from tests.apart import import_apart

from .models.case import draw
from .models.glow_tts_models import COQUI, PIPER

pytestmark = pytest.mark.no_typecheck

# What each calls the reach of its tables, and how far its keys may be.
LIBRARIES = {
    "piper": (PIPER, "MultiHeadAttention", "window_size", "block_length"),
    "coqui": (COQUI, "RelativePositionMultiHeadAttention", "rel_attn_window_size", "input_length"),
}


def attention(library: str, **settings: Any) -> nn.Module:
    """With `reach` and `local` by the names that the library has for them."""
    module, name, reach, local = LIBRARIES[library]
    names = {"reach": reach, "local": local}
    settings = {names.get(key, key): value for key, value in settings.items()}
    torch.manual_seed(0)
    made = getattr(import_apart(module), name)(32, 24, 4, **settings)
    draw(made)
    return made.double().eval()


def inputs(length: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    """Of two sequences, the second shorter, and a mask of pairs as encoders make it."""
    x = torch.randn(2, 32, length, dtype=torch.float64)
    tokens = (torch.arange(length) < torch.tensor([[length], [length - 11]])).double()[:, None]
    return x, tokens[:, :, None] * tokens[..., None]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"reach": 4},
        {"reach": 40},
        {"reach": 3, "heads_share": False},
        {"reach": 3, "proximal_bias": True},
        {"proximal_bias": True},
        {"reach": 3, "local": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_outputs_and_gradients_are_the_original_s(library: str, settings: dict, masked: bool):
    original = attention(library, **settings)
    adapted = deepcopy(original)
    assert adapt(adapted, strict=True).adapted
    x, pairs = inputs()
    real = torch.ones(2, 1, 30, dtype=torch.bool)
    mask = None
    if masked:
        mask, real = pairs, pairs[:, :, 0] != 0
    found = []
    for module in (original, adapted):
        leaf = x.clone().requires_grad_()
        output = module(leaf, leaf, mask) * real
        gradients = torch.autograd.grad(output.square().sum(), [leaf, *module.parameters()])
        found.append([output, *gradients])
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_window_and_keys_that_are_near_are_both_kept(library: str):
    """Of the window -2..9 and the module's -5..5."""
    adapted = attention(library, reach=3, local=5)
    adapt(adapted, window=(2, 9))
    x = torch.randn(1, 32, 30, dtype=torch.float64)
    keys = x.clone().requires_grad_()
    adapted(x, keys, torch.ones(1, 1, 1, 30))[0, :, 12].sum().backward()
    seen = (keys.grad.abs().sum(1)[0] > 0).nonzero().flatten().tolist()
    assert seen == list(range(10, 18))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_decoder_s_attention_takes_no_window(library: str):
    model = nn.ModuleList([attention(library, proximal_bias=True), attention(library, reach=2)])
    (_, first), (_, second) = adapt(model, window=(2, 9)).adapted
    assert first.endswith("no window")
    assert second.endswith("window (2, 9)")


@pytest.mark.parametrize("library", LIBRARIES)
def test_without_positions_it_is_left_without_a_word(library: str):
    model = nn.ModuleList([attention(library), attention(library, reach=2)])
    report = adapt(model, strict=True)
    assert [name for name, _ in report.adapted] == ["1"]
    assert "no longer kept in attn" in report.adapted[0][1]


@pytest.mark.parametrize("library", LIBRARIES)
def test_other_keys_are_refused_as_before(library: str):
    adapted = attention(library, reach=2)
    adapt(adapted)
    x = torch.randn(1, 32, 9, dtype=torch.float64)
    with pytest.raises(AssertionError, match="only available for self-attention"):
        adapted(x, x[:, :, :5])
