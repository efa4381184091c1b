"""The committed results: one JSON for each run."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["RESULTS", "ROOT", "has", "load", "save"]

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


def has(name: str) -> bool:
    """Whether there is a committed result of that name."""
    return (RESULTS / name).exists()


def load(name: str) -> dict:
    """A committed result."""
    return json.loads((RESULTS / name).read_text())


def save(path: Path, result: dict, *, indent: int = 1) -> None:
    """Write a result; an older one at that path stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=indent) + "\n")
    part.replace(path)
