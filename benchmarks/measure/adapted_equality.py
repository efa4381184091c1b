"""How far adapted models are from the original ones: the small models of `tests/adapters`."""

from __future__ import annotations

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
    from tests.adapters.results import gradients, original_and_adapted, sizes

    worst = {"float64": 0.0, "float32": 0.0}
    for padding in case.paddings:
        torch.manual_seed(1)
        inputs = case.inputs(3, case.lengths[0], padding)
        exact: dict[str, Tensor] = {}
        for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
            given = case.with_dtype(inputs, dtype)
            models = original_and_adapted(case.model(dtype))
            theirs, ours = (gradients(case, model, given) for model in models)
            exact = exact or theirs
            found = (
                float((ours[key] - theirs[key]).abs().max()) / size
                for key, size in sizes(exact).items()
            )
            worst[name] = max(worst[name], *found)
    return worst
