"""The triton backend for tensors of the CPU, where a GPU is to compute with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch

from relpos.ops.inputs import Inputs
from relpos.ops.parts import Part, RowFlow

TENSORS = (
    "q", "k", "v", "mask", "documents", "query_documents", "key_ranges", "axis_ranges", "seed",
)  # fmt: skip


def patch_triton(patch: pytest.MonkeyPatch) -> None:
    """Move what it is given to the GPU, and its results to the CPU."""
    triton = import_module("relpos.ops.triton")
    patch.setattr(triton, "unsupported", of_moved(triton.unsupported))
    for name in ("attention", "part", "part_gradients"):
        function = of_moved(getattr(triton, name))
        patch.setattr(triton, name, lambda *given, run=function: moved(run(*given), "cpu"))


def of_moved(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of its arguments on the GPU."""
    return lambda *given: function(*(moved(x, "cuda") for x in given))


def moved(x: Any, device: str) -> Any:
    """`x` with all tensors in it on that device: in the arguments and results of a backend."""
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if isinstance(x, tuple):
        return tuple(moved(part, device) for part in x)
    if isinstance(x, dict):
        return {name: moved(part, device) for name, part in x.items()}
    if isinstance(x, Inputs):
        tensors = {name: moved(getattr(x, name), device) for name in TENSORS}
        return replace(x, **tensors, terms=x.terms.map(lambda tensor: tensor.to(device)))
    if isinstance(x, Part | RowFlow):
        names = x.__dataclass_fields__
        return replace(x, **{name: moved(getattr(x, name), device) for name in names})
    return x
