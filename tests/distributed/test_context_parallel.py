"""Layers over a cut sequence: every scheme of the registry, method and layout, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, distributed, nn

import relpos.distributed as cut
from relpos.distributed import ContextParallel
from tests.distributed.cut import relative_error, world
from tests.ecosystem.schemes import SUBJECTS, Attention, inputs, made

METHODS = ("heads", "gather", "ring")
LAYOUTS = ("zigzag", "contiguous")
# Those of a line of tokens in a layer. The others are made for a grid, or call the op themselves.
LINES = [
    name for name in SUBJECTS
    if isinstance(SUBJECTS[name].make(), Attention) and name != "RelPosEmb2D"
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LINES)
def test_a_layer_is_as_in_one_process(two, name: str, method: str, layout: str):
    two.run(_check_layer, name, method, layout)


def _check_layer(rank, size, name, method, layout) -> None:
    whole = made(name, torch.float64)
    (x,) = inputs(name, 33, torch.float64)
    parallel = ContextParallel(layout=layout, method=method).apply_to(copy.deepcopy(whole), world())
    local = cut.shard(x, world(), layout)
    _compare(whole, parallel, (x,), (local,), layout)


def _compare(
    whole: nn.Module,
    parallel: nn.Module,
    inputs: tuple[Tensor, ...],
    local: tuple[Tensor, ...],
    layout: cut.Layout,
) -> None:
    """Output, and gradients of inputs and parameters."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    local = tuple(x.detach().requires_grad_() for x in local)
    expected, found = whole(*inputs), parallel(*local)
    assert relative_error(found, cut.shard(expected, world(), layout)) <= 1e-12
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view(expected.shape)
    (expected * weights).sum().backward()
    (found * cut.shard(weights, world(), layout)).sum().backward()
    for x, y in zip(inputs, local, strict=True):
        assert x.grad is not None
        assert y.grad is not None
        assert relative_error(y.grad, cut.shard(x.grad, world(), layout)) <= 1e-12
    for (name, one), (_, other) in zip(
        whole.named_parameters(), parallel.named_parameters(), strict=True
    ):
        assert one.grad is not None
        total = torch.zeros_like(other) if other.grad is None else other.grad.clone()
        distributed.all_reduce(total)
        assert relative_error(total, one.grad) <= 1e-12, name
