"""The fixed cost of a call: what is wanted, what was measured, and which of it is missed."""

from __future__ import annotations

from ..measure.small_calls import COMPILED
from .cells import markdown_table

__all__ = ["fixed_cost_bound", "fixed_costs_table", "fixed_costs_verdict"]


def fixed_cost_bound(row: dict) -> int:
    """How many microseconds beyond plain SDPA are wanted at most: none where compiled."""
    return 0 if row["pass"].startswith(COMPILED) else 40


def _is_missed(row: dict) -> bool:
    return round(row["beyond"]["median"]) > fixed_cost_bound(row)


def fixed_costs_table(fixed_costs: dict) -> str:
    """What every pass takes longer than plain SDPA, in microseconds, with the bounds."""
    rows = []
    for row in fixed_costs["rows"]:
        median, low, high = (f"{row['beyond'][key]:.0f}" for key in ("median", "p20", "p80"))
        beyond = f"{median} ({low} to {high})"
        rows.append(
            [row["workload"], row["pass"].replace("+", " + "),
             f"**{beyond}, missed**" if _is_missed(row) else beyond, str(fixed_cost_bound(row)),
             f"{row['unit_microseconds']['median']:.0f}"]
        )  # fmt: skip
    head = ["scheme", "pass", "beyond plain SDPA", "at most", "plain SDPA's own"]
    return markdown_table(head, rows, 2)


def fixed_costs_verdict(fixed_costs: dict) -> str:
    """Which fixed costs miss their bound, a line each, and then how many there are."""
    missed = [row for row in fixed_costs["rows"] if _is_missed(row)]
    lines = [
        f"missed: fixed cost: {row['workload']}: {row['pass']}: {row['beyond']['median']:.0f} us, "
        f"not {fixed_cost_bound(row)}"
        for row in missed
    ]
    last = f"{len(fixed_costs['rows'])} fixed costs measured, {len(missed)} missed"
    return "\n".join([*lines, last])
