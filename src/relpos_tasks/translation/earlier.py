"""What an earlier comparison in the same folder measured, which a new one replaces."""

from __future__ import annotations

import json
from pathlib import Path

from ..training.comparison import Comparison
from .positions import titles_of

__all__ = ["replaced_report"]

_METRICS = "metrics.json"


def replaced_report(folder: Path, comparison: Comparison) -> str | None:
    """A line that the report in a folder is of other models than the one that will replace it.

    Models may be shared by comparisons, so that none is trained twice; the report is one.

    Args:
        folder: of the run; it need not be there.
        comparison: what is to be compared.

    Returns:
        The line; None where there is no report, or one of the same models.
    """
    try:
        kept = json.loads((folder / _METRICS).read_text("utf-8"))
        before, seeds = list(kept["held_out"]), list(kept["seeds"])
        named = titles_of(before)
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        return None
    if before == list(comparison.positions) and seeds == comparison.all_seeds:
        return None
    return (
        f"{folder}: the report there is of {named} ({_seeds(seeds)}); it will be replaced by one "
        f"of {titles_of(comparison.positions)} ({_seeds(comparison.all_seeds)}): copy it first to "
        "keep it"
    )


def _seeds(seeds: list[int]) -> str:
    return f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"
