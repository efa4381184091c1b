"""Libraries that lie apart from the environment: `import_apart("timm.models.beit")`.

timm needs torchvision, whose wheel is for a torch with CUDA: beside another its compiled part does
not load, and transformers, which uses torchvision wherever it finds it, fails then. `make setup`
puts both into a folder of their own, which transformers, asked before, has not seen.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers.utils.import_utils import (
    is_timm_available,
    is_torchvision_available,
    is_torchvision_v2_available,
)

__all__ = ["import_apart"]

FOLDER = Path(sys.prefix) / "apart"

# Of operators that the compiled part defines, those that the rest cannot be imported without.
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def import_apart(name: str) -> Any:
    """A module of timm or torchvision, from the environment if that has them."""
    _find_libraries()
    return import_module(name)


@cache
def _find_libraries() -> Any:
    """Kept: the operators go when this does."""
    for remembered in (is_timm_available, is_torchvision_available, is_torchvision_v2_available):
        remembered()
    if find_spec("torchvision") is not None:
        return None
    sys.path.append(str(FOLDER))
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for schema in OPERATORS:
        operators.define(schema)
    return operators
