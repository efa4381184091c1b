"""Figures of a result as the cells of Markdown tables."""

from __future__ import annotations

import json
from pathlib import Path

from cases import UNIT

__all__ = [
    "PASSES",
    "amount",
    "by_contender",
    "grid",
    "has",
    "load",
    "machine_note",
    "milliseconds",
    "ratio",
    "save",
]

PASSES = ("forward", "forward+backward")
RESULTS = Path(__file__).parent / "results"


def has(name: str) -> bool:
    """Whether there is that committed result."""
    return (RESULTS / name).exists()


def load(name: str) -> dict:
    """A committed result."""
    return json.loads((RESULTS / name).read_text())


def save(path: Path, result: dict) -> None:
    """Write a result; what was there stays whole until it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(path)


def grid(head: list[str], rows: list[list[str]], text: int = 1) -> str:
    """A Markdown table; the first `text` columns to the left, the others to the right."""
    rule = ["---"] * text + ["---:"] * (len(head) - text)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def by_contender(result: dict, scene: str) -> dict[tuple[str, str], dict[str, dict]]:
    """The rows of a scene by case and contender, then by pass."""
    found: dict[tuple[str, str], dict[str, dict]] = {}
    for row in result["time"]:
        if row["scene"] == scene:
            found.setdefault((row["case"], row["contender"]), {})[row["pass"]] = row
    return found


def amount(value: float) -> str:
    """A ratio with the digits that mean something."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def milliseconds(seconds: float) -> str:
    """A time with three digits, or all before the point."""
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def ratio(passes: dict[str, dict], label: str, against: str = UNIT, spread: bool = True) -> str:
    """The median of a ratio, and where its 20th to 80th percentiles lie."""
    own = passes.get(label, {}).get("ratios", {}).get(against)
    if own is None:
        return "not measured"
    median = amount(own["median"])
    return f"{median} ({amount(own['p20'])} to {amount(own['p80'])})" if spread else median


def machine_note(machine: dict) -> str:
    """On what it was measured."""
    if "gpu" in machine:
        return (
            f"one {machine['gpu']} (driver {machine['driver']}), torch {machine['torch']}, "
            f"Triton {machine['triton']}, relpos {machine['commit']}"
        )
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    return (
        f"{threads} of an {machine['processor']} ({machine['capability']}), "
        f"torch {machine['torch']}, relpos {machine['commit']}"
    )
