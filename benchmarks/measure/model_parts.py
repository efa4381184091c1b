"""Time and memory of models of transformers into one JSON, each with where it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..files import save
from ..workloads.adapted import AdaptedModel
from .adapted import measure_time
from .adapted_memory import measure_memory
from .machine import note_machine

__all__ = ["PARTS", "measure_parts"]

PARTS = {"time": measure_time, "memory": measure_memory}


def measure_parts(
    models: Iterable[AdaptedModel], parts: Iterable[str], result: dict, out: Path
) -> None:
    """Measure parts of models anew; `out` is written after each.

    Args:
        models: to measure.
        parts: of `PARTS`.
        result: what was measured before, of these models too; changed in place.
        out: the JSON.
    """
    for model in models:
        for part in parts:
            others = [row for row in result.get(part, []) if row["model"] != model.name]
            result[part] = others + PARTS[part](model)
            note_machine(result, f"{model.name}: {part}")
            save(out, result)
