"""Activation checkpointing computes the same gradients, with the same dropout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from relpos.layers import EncoderBlock, GridAttention, MultiheadAttention
from relpos.positions import Grid, RelativeLogits, Shaw, TransformerXL

SCHEMES = {
    "Shaw": lambda: Shaw(8, 3),
    "TransformerXL": lambda: TransformerXL(8, 2),
    "RelativeLogits": lambda: RelativeLogits(7, 3, 2, 16),
}


# What a layer with Shaw's positions has besides.
LOCAL = {"a window": {"window": (4, 1), "softcap": 2.0}}


def encoder(name: str) -> nn.Module:
    position, options = SCHEMES.get(name, SCHEMES["Shaw"])(), LOCAL.get(name, {})
    return EncoderBlock(MultiheadAttention(16, 2, 0.3, position=position, **options), dropout=0.3)


# One of each of the backends that have a dropout of their own.
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def gradients(module: nn.Module, x: Tensor, use_reentrant: bool | None) -> list[Tensor]:
    """Of the input and the parameters; without checkpointing for None."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    output = module(x) if use_reentrant is None else checkpoint(
        module, x, use_reentrant=use_reentrant
    )  # fmt: skip
    module.zero_grad()
    output.square().sum().backward()
    return [x.grad, *(parameter.grad for parameter in module.parameters())]


@every_dtype
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", [*SCHEMES, *LOCAL])
def test_a_block_repeats_its_dropout(name: str, use_reentrant: bool, dtype: torch.dtype):
    module, x = encoder(name).train().to(dtype), torch.randn(2, 33, 16, dtype=dtype)
    want = gradients(module, x, None)
    for found, wanted in zip(gradients(module, x, use_reentrant), want, strict=True):
        assert torch.equal(found, wanted)


@every_dtype
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_grid_repeats_its_dropout(use_reentrant: bool, dtype: torch.dtype):
    module = GridAttention(16, 2, dropout=0.3, position=Grid(8, (3, 5))).train().to(dtype)
    x = torch.randn(2, 16, 3, 5, dtype=dtype)
    assert_close(gradients(module, x, use_reentrant), gradients(module, x, None), rtol=0, atol=0)


def test_another_seed_drops_other_weights():
    """So that equal gradients above mean that dropout was on, and repeated."""
    module, x = encoder("Shaw").train(), torch.randn(2, 33, 16)
    first, second = (module(x) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_checkpointing_inside_compile_computes_the_same_gradients():
    torch._dynamo.reset()
    module, x = encoder("Shaw").eval(), torch.randn(2, 33, 16)
    compiled = torch.compile(
        lambda x: checkpoint(module, x, use_reentrant=False), fullgraph=True, backend="aot_eager"
    )
    found = torch.autograd.grad(compiled(x).square().sum(), list(module.parameters()))
    want = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    assert_close(found, want)
