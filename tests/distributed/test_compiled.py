"""Models under `torch.compile`: exchanges run between its graphs, with the same results."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import relpos.distributed as cut
from relpos.distributed import ContextParallel, HeadParallel
from relpos.layers import DecoderBlock, MultiheadAttention
from relpos.positions import Huang, LearnedAbsolute
from tests.distributed.cut import relative_error, world

pytestmark = pytest.mark.no_typecheck


class Model(nn.Module):
    """Positions at the input, and a block."""

    def __init__(self) -> None:
        super().__init__()
        self.absolute = LearnedAbsolute(16, 40)
        self.block = DecoderBlock(MultiheadAttention(16, 4, position=Huang(4, max_length=32)))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.absolute(x)).sin()


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("method", ["heads", "gather", "ring"])
@pytest.mark.costly(1)
def test_a_cut_sequence(two, method: str):
    two.run(_check_sequence, method)


def _check_sequence(rank, size, method) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    whole = Model().double()
    model = ContextParallel(method=method).apply_to(copy.deepcopy(whole), world())
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for length in (33, 40, 37):
        x = drawn(2, length, 16).requires_grad_()
        local = cut.shard(x.detach(), world()).requires_grad_()
        expected, found = whole(x), compiled(local)
        assert relative_error(found, cut.shard(expected, world())) <= 1e-12
        (gradient,) = torch.autograd.grad(expected.square().sum(), x)
        (other,) = torch.autograd.grad(found.square().sum(), local)
        assert relative_error(other, cut.shard(gradient, world())) <= 1e-12
    assert counter.op_count > 0


def test_cut_heads(two):
    two.run(_check_heads)


def _check_heads(rank, size) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    whole = Model().double()
    mesh = init_device_mesh("cpu", (size,))
    model = parallelize_module(copy.deepcopy(whole), mesh, {"block": HeadParallel()})
    compiled = torch.compile(model, backend="aot_eager")
    x = drawn(2, 33, 16)
    expected, found = whole(x), compiled(x)
    assert relative_error(found, expected) <= 1e-12
    expected.square().sum().backward()
    found.square().sum().backward()
    named = dict(model.named_parameters())
    for name, one in whole.block.attention.position.named_parameters():
        other = named[f"block.attention.position.{name}"].grad
        assert isinstance(other, DTensor)
        assert one.grad is not None
        assert relative_error(other.full_tensor(), one.grad) <= 1e-12
