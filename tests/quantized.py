"""Linear modules that pack their weights, as quantized ones do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["KINDS", "IntegerWeight", "WeightMethod", "pack", "unpacked"]


class IntegerWeight(nn.Linear):
    """8 bits a weight and a scale for each row; as in bitsandbytes, `weight` is of integers."""

    packed = "weight"

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        integers = (linear.weight.detach() / scale).round().to(torch.int8)
        self.register_parameter(self.packed, nn.Parameter(integers, requires_grad=False))
        self.bias = linear.bias
        self.register_buffer("scale", scale)

    def numbers(self) -> Tensor:
        """What it multiplies by."""
        return getattr(self, self.packed) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise TypeError(f"{x.dtype} is multiplied by a packed weight")
        return nn.functional.linear(x, self.numbers(), self.bias)


class WeightMethod(IntegerWeight):
    """The same with a method `weight`, as torch's quantized modules have, which nobody may ask."""

    packed = "packed_weight"
    weight: Any = property(lambda self: self._weight)

    def _weight(self) -> Tensor:
        raise AssertionError("a packed weight was asked for")


KINDS = (IntegerWeight, WeightMethod)


def pack(module: nn.Module, kind: type[IntegerWeight] = IntegerWeight) -> int:
    """Put one that packs in the place of every linear module, and say of how many."""
    count = 0
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear:
            setattr(module, name, kind(child))
            count += 1
        elif not isinstance(child, IntegerWeight):
            count += pack(child, kind)
    return count


def unpacked(module: nn.Module) -> None:
    """Give every linear module of a plain module the weight that a packed one multiplies by."""
    for child in module.modules():
        if type(child) is nn.Linear:
            child.weight.data = IntegerWeight(child).numbers()
