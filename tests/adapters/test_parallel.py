"""Adapted models under DDP and FSDP: two processes with half a batch each, as one with all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from relpos.adapters import Adapted, adapt, restore

from .models import BY_NAME
from .models.case import Case
from .results import assert_equal

NAMES = ("t5", "deberta_v3", "parakeet", "wav2vec2_bert relative_key", "bloom", "wavlm ctc")


def batch(case: Case) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return case.with_dtype(case.inputs(4, case.lengths[0], "none"), torch.float64)


def gradients(case: Case, run: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    with case.unrounded(run):
        getattr(run(**inputs), case.output).square().mean().backward()
    found = {name: p.grad for name, p in run.named_parameters() if p.grad is not None}
    return {
        name.removeprefix("module."): x.full_tensor() if isinstance(x, DTensor) else x.clone()
        for name, x in found.items()
    }


def ddp(case: Case, model: nn.Module) -> nn.Module:
    # Some of the originals have parameters that not every call uses.
    return DistributedDataParallel(model, find_unused_parameters=True)


def fsdp(case: Case, model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model.get_submodule(case.attention), mesh=mesh)
    fully_shard(model, mesh=mesh)
    with pytest.raises(ValueError, match="got FSDP"):
        restore(model)
    return model


WAYS = {"ddp": ddp, "fsdp": fsdp}


def half(rank: int, folder: str, way: str) -> None:
    """What one of the processes does."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    for name in NAMES:
        case = BY_NAME[name]
        model = case.model(torch.float64)
        adapt(model)
        parallel = WAYS[way](case, model)
        assert any(isinstance(module, Adapted) for module in parallel.modules())
        inputs = {key: x[2 * rank : 2 * rank + 2] for key, x in batch(case).items()}
        found = gradients(case, parallel, inputs)
        if rank == 0:
            torch.save(found, Path(folder) / f"{name}.pt")
        # A second step fails if the first was not reduced as a whole.
        gradients(case, parallel, inputs)
    distributed.barrier()
    distributed.destroy_process_group()
    # Torch's threads, which the interpreter would end in any order, abort the process now and then.
    os._exit(0)


@pytest.mark.no_typecheck
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.costly(1, of="several processes")
def test_two_processes_have_the_gradients_of_the_original_in_one(way: str, tmp_path: Path):
    multiprocessing.spawn(half, args=(str(tmp_path), way), nprocs=2)
    for name in NAMES:
        case = BY_NAME[name]
        wanted = gradients(case, case.model(torch.float64), batch(case))
        assert_equal(torch.load(tmp_path / f"{name}.pt"), wanted, 1e-11)
