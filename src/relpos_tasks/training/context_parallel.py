"""Lightning's data parallelism, with the tokens of each sequence shared by several devices.

Of so many devices, groups of `context_parallel` work at the same sequences. Each gets its own
tokens of every batch, and attention is that of `relpos.distributed.attention`. Gradients are
averaged over all devices, as in `DDPStrategy`: a loss is to be a sum over tokens, over how many an
average device has (`Task.training_step`).
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._pytree import tree_map

from relpos.distributed import ContextParallel, shard

from .settings import TrainingError

__all__ = ["ContextParallelStrategy"]


class ContextParallelStrategy(DDPStrategy):
    """`DDPStrategy`, in which devices share sequences.

    Batches are of tensors `(b, i, ...)`, of which each device gets its tokens. The model has its
    attention in `relpos.layers.MultiheadAttention`.

    Args:
        context_parallel: devices that share a sequence.
        style: how sequences are cut.
        options: of `DDPStrategy`.

    Raises:
        TrainingError: on setting up, if the devices are no multiple of that number.
    """

    mesh: DeviceMesh

    def __init__(
        self, context_parallel: int, style: ContextParallel | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.context_parallel = context_parallel
        self.style = ContextParallel() if style is None else style

    def setup_environment(self) -> None:
        """Start the processes, and group them."""
        super().setup_environment()
        if self.world_size % self.context_parallel:
            raise TrainingError(
                f"--context-parallel: must divide the {self.world_size} devices, "
                f"got {self.context_parallel}"
            )
        shape = (self.world_size // self.context_parallel, self.context_parallel)
        device = self.root_device.type
        self.mesh = init_device_mesh(device, shape, mesh_dim_names=("dp", "cp"))

    def setup(self, trainer: lightning.Trainer) -> None:
        """Change the model's layers, before it is wrapped."""
        assert self.lightning_module is not None
        self.style.apply_to(self.lightning_module, self.mesh["cp"])
        super().setup(trainer)

    def teardown(self) -> None:
        """Give the layers back: they are used on one device afterwards."""
        if self.lightning_module is not None:
            self.style.remove_from(self.lightning_module)
        super().teardown()

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """This device's tokens of a batch."""
        group = self.mesh["cp"]

        def own(x: Any) -> Any:
            return shard(x, group, self.style.layout) if isinstance(x, Tensor) else x

        return move_data_to_device(tree_map(own, batch), device or self.root_device)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How many groups of devices share a batch, and which of them this one is in."""
        return {"num_replicas": self.mesh.size(0), "rank": self.mesh.get_local_rank("dp")}
