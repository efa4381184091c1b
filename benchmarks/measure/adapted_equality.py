"""How far adapted models are from the original ones: the small models of `tests/adapters`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from relpos.adapters import Adapted, adapt

__all__ = ["measure_equality"]


def measure_equality() -> list[dict]:
    """A row for each module of transformers: the largest difference in float64 and float32."""
    from tests.adapters.models import CASES

    rows: dict[str, dict[str, Any]] = {}
    for case in CASES:
        found = _differences(case)
        model = case.model()
        adapt(model)
        modules = {type(m).__module__ for m in model.modules() if isinstance(m, Adapted)}
        for module in modules:
            row = rows.setdefault(module, {"module": module, "float64": 0.0, "float32": 0.0})
            for dtype, difference in found.items():
                row[dtype] = max(row[dtype], difference)
        print(f"{case.name:40} {found['float64']:.0e} {found['float32']:.0e}", flush=True)
    return [rows[module] for module in sorted(rows)]


def _differences(case: Any) -> dict[str, float]:
    """By dtype the largest of outputs, loss and gradients, as parts of their largest entries."""
    from tests.adapters.results import gradients

    worst = {"float64": 0.0, "float32": 0.0}
    for padding in case.paddings:
        torch.manual_seed(1)
        inputs = case.inputs(3, case.lengths[0], padding)
        exact: dict[str, Tensor] = {}
        for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
            given = case.with_dtype(inputs, dtype)
            original = case.model(dtype)
            adapted = copy.deepcopy(original)
            adapt(adapted)
            theirs = gradients(case, original, given)
            ours = gradients(case, adapted, given)
            exact = exact or theirs
            found = (_relative(ours[key], theirs[key], exact, key) for key in theirs)
            worst[name] = max(worst[name], *found)
    return worst


def _relative(x: Tensor, y: Tensor, exact: dict[str, Tensor], key: str) -> float:
    """What is zero in exact arithmetic is rounding alone, and measured by the largest of all."""
    largest = max(float(other.abs().max()) for other in exact.values())
    zero = float(exact[key].abs().max()) < 1e-9 * largest
    return float((x - y).abs().max()) / (largest if zero else float(exact[key].abs().max()))
