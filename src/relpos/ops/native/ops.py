"""What torch must know of the kernel's operators, whose schemas `csrc/op_arguments.h` repeats."""

from __future__ import annotations

from ..arguments import AXIS_LOGITS
from ..custom_op import CustomOp

__all__ = ["NATIVE"]

NATIVE = CustomOp(
    "native",
    results=("output", "lse", "softmax", "rounded_off"),
    saved=("output", "softmax", "rounded_off"),
    without=(*AXIS_LOGITS, "return_lse"),
    compiled=True,
)
