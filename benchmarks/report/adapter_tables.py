"""Tables of models of transformers beside their originals: speed-ups, memory, long inputs."""

from __future__ import annotations

from ..measure.passes import BOTH, FORWARD
from ..workloads.adapted import MODELS, AdaptedModel
from .cells import format_ratio, machine_note, markdown_table

__all__ = ["gains_table", "left_out", "long_table", "measured_on", "memory_table"]


def measured_on(result: dict, part: str) -> str:
    """The machine, the commits at which the rows of a part were measured, and who ran elsewhere."""
    commits = {commit for name, commit in result["commits"].items() if name.endswith(f": {part}")}
    models: dict[tuple[str, str], list[str]] = {}  # by processor and its instructions
    for name, found in result["processors"].items():
        model, _, of_part = name.rpartition(": ")
        if of_part == part:
            models.setdefault((found["processor"], found["capability"]), []).append(model)
    most, *others = sorted(models, key=lambda processor: -len(models[processor]))
    machine = result["machine"] | dict(zip(("processor", "capability"), most, strict=True))
    note = machine_note(machine | {"commit": ", ".join(sorted(commits))})
    elsewhere = [
        f"{' / '.join(sorted(models[processor, capability]))} on an {processor} ({capability})"
        for processor, capability in others
    ]
    return "; ".join([note, *elsewhere])


def gains_table(result: dict, models: tuple[AdaptedModel, ...] = MODELS) -> str:
    """Speed-ups of each model and length, forward and with backward."""
    rows = []
    for model in models:
        for length in model.lengths:
            found = {
                (row["part"], row["pass"]): row
                for row in result["time"]
                if (row["model"], row["length"]) == (model.name, length)
            }
            if not found:
                continue
            cells = [
                _speedup(found[name, label])
                for name in ("attention", "layer")
                for label in (FORWARD, BOTH)
            ]
            error = max(row["error"] for row in found.values())
            rows.append([model.name, f"{length} {model.unit}", *cells, f"{error:.0e}"])
    head = ["model", "input", "attention, forward", "forward + backward",
            "layer, forward", "forward + backward", "difference"]  # fmt: skip
    return markdown_table(head, rows, 2)


def left_out(result: dict) -> list[str]:
    """Of the models that did not run, by the reason, if there are any."""
    models: dict[str, list[str]] = {}
    for row in result["left_out"]:
        models.setdefault(row["reason"], []).append(row["model"])
    parts = [f"{'; '.join(names)} ({reason})" for reason, names in models.items()]
    return [f"Left out: {'. '.join(parts)}."] if parts else []


def _speedup(row: dict) -> str:
    spread = row["speedup"]
    return f"{format_ratio(spread['median'])} ({row['best']})"


def memory_table(result: dict, ours: str = "adapted") -> str:
    rows = [
        [row["model"], f"{row['length']} {row['unit']}",
         "more" if row["original_mib"] is None else f"{row['original_mib']:.0f}",
         f"{row['adapted_mib']:.0f}"]
        for row in result["memory"]
    ]  # fmt: skip
    return markdown_table(["model", "input", "original", ours], rows, 2)


def long_table(result: dict) -> str:
    """Minutes and memory of long inputs."""
    rows = [
        [row["name"], f"{row['model']}, {row['layers']} of {row['all_layers']} layers",
         f"{row['length']} {row['unit']}", f"{row['seconds'] / 60:.1f}",
         f"{row['peak_mib'] / 1024:.1f}", f"{row['difference']:.0e} ({row['compared']})"]
        for row in result["long"]
    ]  # fmt: skip
    head = ["input", "model", "length", "minutes", "GiB", "difference"]
    return markdown_table(head, rows, 3)
