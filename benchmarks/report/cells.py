"""Figures of a result as the cells of Markdown tables."""

from __future__ import annotations

from ..measure.passes import BOTH, FORWARD
from ..workloads.workload import UNIT

__all__ = [
    "PASSES",
    "by_contender",
    "format_change",
    "format_ratio",
    "machine_note",
    "markdown_table",
    "milliseconds",
    "ratio",
    "ratio_cell",
]

PASSES = (FORWARD, BOTH)


def markdown_table(head: list[str], rows: list[list[str]], text_columns: int = 1) -> str:
    """A Markdown table; its first `text_columns` are aligned left, the others right."""
    rule = ["---"] * text_columns + ["---:"] * (len(head) - text_columns)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def by_contender(result: dict, setting: str) -> dict[tuple[str, str], dict[str, dict]]:
    """The rows of a setting by scheme and contender, then by pass."""
    found: dict[tuple[str, str], dict[str, dict]] = {}
    for row in result["time"]:
        if row["setting"] == setting:
            found.setdefault((row["workload"], row["contender"]), {})[row["pass"]] = row
    return found


def format_change(change: float) -> str:
    """A difference with three decimals and its sign, which nothing has as +0.000."""
    return f"{round(change, 3) + 0.0:+.3f}"


def format_ratio(value: float) -> str:
    """A ratio with two decimals, from 10 on with one."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def milliseconds(seconds: float) -> str:
    """A time with three digits, or all before the point."""
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def ratio(passes: dict[str, dict], name: str, against: str = UNIT, spread: bool = True) -> str:
    """The median of a ratio in the pass of that name, and its 20th to 80th percentiles."""
    percentiles = passes.get(name, {}).get("ratios", {}).get(against)
    if percentiles is None:
        return "not measured"
    return ratio_cell(percentiles) if spread else format_ratio(percentiles["median"])


def ratio_cell(percentiles: dict[str, float]) -> str:
    """The median of a ratio, and its 20th to 80th percentiles."""
    median, *ends = (format_ratio(percentiles[key]) for key in ("median", "p20", "p80"))
    return f"{median} ({' to '.join(ends)})"


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
