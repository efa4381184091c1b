"""DistributedDataParallel: two processes with half a batch each, as one with all of it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from relpos.layers import DecoderBlock, EncoderBlock, GridAttention, MultiheadAttention
from relpos.positions import (
    Compose,
    ContinuousBias,
    Deberta,
    GatedBias,
    Grid,
    Kerple,
    RelativeLogits,
    Rotary,
    Shaw,
    T5Bias,
    TransformerXL,
)
from tests.ops.backends import DTYPES, every_cpu_blockwise


class Model(nn.Module):
    """Tables, rows made in each call, gates that read the input, a memory, and a grid."""

    def __init__(self) -> None:
        super().__init__()
        bias = T5Bias(2, 8, 20)
        self.encoder = nn.ModuleList(
            EncoderBlock(MultiheadAttention(16, 2, position=position), hidden=16)
            for position in (
                TransformerXL(8, 2),
                Deberta(8, 2, 16),
                GatedBias(bias, 2, 8),
                Compose(Shaw(8, 3), Rotary(8), bias, Kerple(2)),
            )
        )
        self.decoder = DecoderBlock(
            MultiheadAttention(16, 2, position=RelativeLogits(7, 3, 2, 16)),
            cross=MultiheadAttention(16, 2, position=Shaw(8, 3, 2)),
            hidden=16,
        )
        self.grid = GridAttention(
            16, 2, position=Compose(Grid(8, (3, 5)), ContinuousBias(2, (3, 5), hidden=8))
        )

    def forward(self, x: Tensor) -> Tensor:
        memory = x
        for block in self.encoder:
            memory = block(memory)
        x = self.decoder(x, memory=memory)
        return self.grid(x.mT.unflatten(2, (3, 5)))


def model_and_batch(dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Model().to(dtype), torch.randn(4, 15, 16, dtype=dtype)


def gradients(run: nn.Module, model: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    run(x).square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def half(rank: int, folder: str, dtype: torch.dtype) -> None:
    """What one of the processes does."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    two_steps(rank, folder, dtype)
    # Nobody leaves while the other still speaks, and nothing holds the group any more.
    gc.collect()
    distributed.barrier()
    distributed.destroy_process_group()


def two_steps(rank: int, folder: str, dtype: torch.dtype) -> None:
    model, batch = model_and_batch(dtype)
    # With `find_unused_parameters` left at False, a parameter without a gradient is an error.
    parallel = DistributedDataParallel(model)
    found = gradients(parallel, model, batch[2 * rank : 2 * rank + 2])
    if rank == 0:
        torch.save(found, Path(folder) / "gradients.pt")
    # A second step fails if a parameter had no gradient in the first.
    parallel(batch[:2]).sum().backward()


@pytest.mark.no_typecheck
@pytest.mark.slow
@every_cpu_blockwise
@pytest.mark.costly(1, of="several processes")
def test_two_processes_have_the_gradients_of_one(backend: str, tmp_path: Path):
    """`auto` takes this backend for this dtype."""
    dtype = DTYPES[backend]
    model, batch = model_and_batch(dtype)
    want = gradients(model, model, batch)
    assert all(x is not None for x in want.values())
    multiprocessing.spawn(half, args=(str(tmp_path), dtype), nprocs=2)
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    assert_close(found, want)
