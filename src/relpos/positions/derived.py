"""Tensors that follow from a scheme's settings, kept on a device without being its state.

A buffer would be lost: loaders that make a model on the device "meta" and then read a state dict
into it (`from_pretrained`, `to_empty`) leave buffers that no state dict holds as memory had them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..ops.torch_dispatcher import has_no_modes
from ..ops.transforms import is_transformed

__all__ = ["derived"]


def derived(
    module: nn.Module, name: str, make: Callable[[], Tensor], device: torch.device
) -> Tensor:
    """What `make` returns, on `device`; for later calls it is kept, but not in a state dict.

    Args:
        module: that keeps it, as an attribute.
        name: of the attribute.
        make: makes it, on the CPU.
        device: where it is wanted.
    """
    kept = module.__dict__.get(name)
    usual = has_no_modes() and not is_transformed()
    if kept is not None and kept.device == device and (usual or torch.compiler.is_compiling()):
        return kept
    # Else it could not be kept for a backward pass.
    with torch.inference_mode(False):
        made = make().to(device)
    if usual:
        module.__dict__[name] = made
    return made
