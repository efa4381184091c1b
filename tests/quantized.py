"""Linear modules that pack their weights, as quantized ones do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Packed", "pack", "unpacked"]


class Packed(nn.Linear):
    """8 bits a weight and a scale for each row; as in bitsandbytes, `weight` is of integers."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        packed = (linear.weight.detach() / scale).round().to(torch.int8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias
        self.register_buffer("scale", scale)

    def numbers(self) -> Tensor:
        """The weight that it multiplies by."""
        return self.weight * self.scale

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise TypeError(f"{x.dtype} is multiplied by a packed weight")
        return nn.functional.linear(x, self.numbers(), self.bias)


def pack(module: nn.Module) -> int:
    """Put a `Packed` in the place of every linear module, and say of how many."""
    count = 0
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, Packed(child))
            count += 1
        elif not isinstance(child, Packed):
            count += pack(child)
    return count


def unpacked(module: nn.Module) -> None:
    """Give every linear module of a plain module the weight that a packed one multiplies by."""
    for child in module.modules():
        if type(child) is nn.Linear:
            child.weight.data = Packed(child).numbers()
