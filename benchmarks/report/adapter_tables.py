"""Tables of models of transformers beside their originals: speed-ups, memory, long inputs."""

from __future__ import annotations

from ..measure.passes import BOTH, FORWARD
from ..workloads.adapted import MODELS, AdaptedModel
from .cells import format_ratio, machine_note, markdown_table

__all__ = ["gains_table", "left_out", "long_table", "measured_on", "memory_table"]


def measured_on(result: dict, part: str, models: tuple[AdaptedModel, ...] | None = None) -> str:
    """The machine, the commits at which a part of models (all) was measured; who ran elsewhere."""
    names = result["commits"] if models is None else [f"{model.name}: {part}" for model in models]
    shown = {name for name in names if name.endswith(f": {part}")}
    commits = {commit for name, commit in result["commits"].items() if name in shown}
    ran: dict[tuple[str, str], list[str]] = {}  # by processor and its instructions
    for name, found in result["processors"].items():
        if name in shown:
            processor = found["processor"], found["capability"]
            ran.setdefault(processor, []).append(name.removesuffix(f": {part}"))
    most, *others = sorted(ran, key=lambda processor: -len(ran[processor]))
    machine = result["machine"] | dict(zip(("processor", "capability"), most, strict=True))
    note = machine_note(machine | {"commit": ", ".join(sorted(commits))})
    elsewhere = [
        f"{' / '.join(sorted(ran[processor, capability]))} on an {processor} ({capability})"
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
