"""A module as a device has it under `torch.nn.DataParallel`: its parameters are plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from torch import Tensor, nn
from torch.nn.parallel.replicate import replicate

__all__ = ["in_a_thread", "replica"]


def _copies(
    tensors: Sequence[Tensor], devices: Sequence[int], detach: bool = False
) -> list[list[Tensor]]:
    return [[x.detach().clone() if detach else x.clone() for x in tensors] for _ in devices]


def replica(module: nn.Module) -> nn.Module:
    """The second of two, on the same device, from which gradients come to the module."""
    with mock.patch("torch.nn.parallel.replicate._broadcast_coalesced_reshape", _copies):
        return replicate(module, [0, 1])[1]


def in_a_thread(call: Callable[[], Tensor]) -> Tensor:
    """What a call gives in a thread of its own, as `DataParallel` calls replicas."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
