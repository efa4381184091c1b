"""What only the Conformers outside of transformers have: contexts, dense masks, stored weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conformer.conformer import Attention
from torch import Tensor, nn

import relpos
from relpos.adapters import adapt, restore
from tests.factories import normal

from .models.case import draw
from .models.foreign import Named
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck


def pair(module: nn.Module) -> tuple[Any, Any]:
    """A module with drawn parameters in float64, and an adapted copy of it."""
    draw(module)
    return original_and_adapted(module.double().eval())


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def espnet_attention(*, legacy: bool = False, zero_triu: bool = False) -> tuple[Any, Any]:
    return pair(Named(legacy=legacy, zero_triu=zero_triu).encoder.encoders[0].self_attn)


def test_conformers_attention_to_a_context_is_the_originals():
    theirs, ours = pair(Attention(16, 2, 8, max_pos_emb=4))
    x, context = normal(2, 9, 16), normal(2, 9, 16)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    assert_same(ours(x, context), theirs(x, context))
    masks = {"mask": mask, "context_mask": ~mask | (torch.arange(9) == 0)}
    assert_same(ours(x, context, **masks), theirs(x, context, **masks))
    restore(ours)
    adapt(ours, window=(2, 2))
    with pytest.raises(ValueError, match=r"Attention: adapted with window=\(2, 2\), it must be"):
        ours(x, context)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_espnet_takes_a_mask_with_a_row_for_each_query(dtype: torch.dtype):
    theirs, ours = espnet_attention()
    x, positions = normal(2, 9, 32), normal(1, 17, 32)
    mask = torch.ones(9, 9).tril()[None].expand(2, -1, -1).to(dtype).clone()
    mask[1, 3] = 0  # a query without any key
    assert_same(ours(x, x, x, positions, mask), theirs(x, x, x, positions, mask))
    assert_same(ours(x, x, x, positions, None), theirs(x, x, x, positions, None))


def test_espnet_with_a_table_for_each_sequence_is_the_original():
    theirs, ours = espnet_attention()
    x, positions = normal(2, 9, 32), normal(2, 17, 32)
    assert_same(ours(x, x, x, positions, None), theirs(x, x, x, positions, None))


def test_espnets_report_says_that_weights_are_not_kept():
    encoder = Named(legacy=False, zero_triu=False)
    report = adapt(encoder)
    assert {scheme for _, scheme in report.adapted} == {
        "Transformer-XL; its weights are no longer kept in attn"
    }
    encoder(normal(1, 9, 16).float())
    assert all(layer.self_attn.attn is None for layer in encoder.encoder.encoders)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 70])
@pytest.mark.parametrize("zero_triu", [False, True])
def test_espnets_first_form_gives_keys_ahead_the_positions_of_the_next_query(
    length: int, zero_triu: bool
):
    theirs, ours = espnet_attention(legacy=True, zero_triu=zero_triu)
    x, positions = normal(2, length, 32), normal(1, length, 32)
    mask = torch.arange(length) < torch.tensor([length, (length + 1) // 2])[:, None, None]
    assert_same(ours(x, x, x, positions, mask), theirs(x, x, x, positions, mask))
    q, rows = normal(2, 4, length, 8), normal(length, 32)
    products = (q + theirs.pos_bias_v[:, None]) @ rows.unflatten(1, (4, 8)).permute(1, 2, 0)
    found = relpos.relative_logits(q, q, ours._terms(q, rows), scale=1.0)
    assert_same(found, theirs.rel_shift(products))


@pytest.mark.parametrize("window", [(0, 0), (2, 1)])
def test_a_window_makes_them_local(window: tuple[int, int]):
    encoder: Any = Named(legacy=False, zero_triu=True).double().eval()
    adapt(encoder, window=window)
    x = normal(1, 9, 32).requires_grad_()
    attention = encoder.encoder.encoders[0].self_attn
    attention(x, x, x, normal(1, 17, 32), None)[0, 4].sum().backward()
    assert x.grad is not None
    seen = (x.grad[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
    assert seen == list(range(4 - window[0], 5 + window[1]))
