"""What an earlier comparison in the same folder measured, which a new one replaces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..training.comparison import Comparison

__all__ = ["replaced_report"]


def replaced_report(metrics: Path, comparison: Comparison) -> str | None:
    """A line that the report in a folder is of other models than the one that will replace it.

    Models may be shared by comparisons, so that none is trained twice; the report is one.

    Args:
        metrics: `metrics.json` of the run; it need not be there.
        comparison: what is to be compared.

    Returns:
        The line; None where there is no report, or one of the same models.
    """
    try:
        kept = json.loads(metrics.read_text("utf-8"))
        before, seeds = [str(name) for name in kept["held_out"]], list(kept["seeds"])
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        return None
    after = list(comparison.positions), comparison.all_seeds
    if (before, seeds) == after:
        return None
    return (
        f"{metrics.parent}: the report there is of {_models(before, seeds)}; it will be replaced "
        f"by one of {_models(*after)}: copy it first to keep it"
    )


def _models(positions: Sequence[str], seeds: Sequence[int]) -> str:
    return f"{', '.join(positions)} ({len(seeds)} seed{'s' * (len(seeds) > 1)})"
