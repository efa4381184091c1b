"""A position that FSDP wraps by itself, so that its tables are freed before attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

from relpos.layers import GridAttention, MultiheadAttention
from relpos.positions import Alibi, Compose, Grid, Huang, Shaw, T5Bias, WindowBias

MAKE: dict[str, Callable[[], nn.Module]] = {
    "Shaw": lambda: MultiheadAttention(16, 2, position=Shaw(8, max_distance=3)),
    "Huang": lambda: MultiheadAttention(16, 2, position=Huang(8, max_length=9, heads=2)),
    "T5Bias": lambda: MultiheadAttention(16, 2, position=T5Bias(2)),
    "Compose": lambda: MultiheadAttention(16, 2, position=Compose(Shaw(8, 3), Alibi(2))),
    "Grid": lambda: GridAttention(16, 2, position=Grid(8, (3, 4))),
    "Grid, not resized": lambda: GridAttention(16, 2, position=Grid(8, (3, 4), resize=False)),
    "WindowBias": lambda: GridAttention(16, 2, position=WindowBias(2, (3, 4))),
}


def _output(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if "GridAttention" in type(layer).__name__:
        return layer(x.mT.unflatten(-1, (3, 4)))
    return layer(x, x, x, need_weights=False)[0]


class _Model(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer = MAKE[name]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _output(self.layer, x)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("version", [1, 2])
def test_tables_that_are_freed_after_the_positions_call_still_count(two, name, version):
    two.run(_check, name, version)


def _check(rank: int, size: int, name: str, version: int) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(_Model(name))
    whole, model = models
    x = torch.randn(2, 12, 16)
    mesh = init_device_mesh("cpu", (size,))
    if version == 1:
        wrap = partial(
            FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=True
        )
        model.layer.position = wrap(model.layer.position)
        model = wrap(model)
    else:
        fully_shard(model.layer.position, mesh=mesh)
        fully_shard(model, mesh=mesh)
    outputs = []
    for one in (whole, model):
        output = one(x)
        output.square().sum().backward()
        outputs.append(output.detach())
    assert torch.equal(outputs[0], outputs[1])
    expected = {label: p.grad for label, p in whole.named_parameters()}
    found = dict(model.named_parameters())
    assert len(found) == len(expected)
    for (label, want), parameter in zip(expected.items(), found.values(), strict=True):
        if version == 2:
            assert isinstance(parameter.grad, DTensor)
            torch.testing.assert_close(parameter.grad.full_tensor(), want, msg=label)
    if version == 1:
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            for (label, want), parameter in zip(expected.items(), model.parameters(), strict=True):
                torch.testing.assert_close(parameter.grad, want, msg=label)
