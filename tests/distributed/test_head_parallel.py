"""Layers whose heads are cut among ranks: every scheme of the registry, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from relpos.distributed import HeadParallel
from tests.distributed.cut import relative_error
from tests.distributed.test_context_parallel import LINES
from tests.ecosystem.schemes import inputs, made


@pytest.mark.parametrize("name", LINES)
def test_a_layer_is_as_in_one_process(two, name: str):
    two.run(_check_layer, name)


def _check_layer(rank, size, name) -> None:
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    whole = made(name, torch.float64)
    (x,) = inputs(name, 33, torch.float64)
    parallel = parallelize_module(copy.deepcopy(whole), mesh["tp"], HeadParallel())
    compare(whole, parallel, x, x)


def compare(whole: nn.Module, parallel: nn.Module, x: Tensor, local: Tensor) -> None:
    """Output, and the gradients of input and parameters."""
    x, local = x.detach().requires_grad_(), local.detach().clone().requires_grad_()
    expected, found = whole(x), parallel(local)
    assert relative_error(found, expected) <= 1e-12
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view(expected.shape)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    assert x.grad is not None
    assert local.grad is not None
    assert relative_error(local.grad, x.grad) <= 1e-12
    compare_gradients(whole, parallel)


def compare_gradients(whole: nn.Module, parallel: nn.Module) -> None:
    """Those of each parameter; of a cut layer's projections by the names of one device."""
    found = {}
    for name, parameter in parallel.named_parameters():
        assert parameter.grad is not None, name
        grad = parameter.grad
        found[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None, name
        if "in_proj" in name:
            parts = [found[name.replace("in_proj", f"{part}_proj")] for part in "qkv"]
            found[name] = torch.cat(parts)
        assert relative_error(found[name], parameter.grad) <= 1e-12, name
