"""What the sweep over sizes says of `backend="auto"`: how often each backend was the fastest."""

from __future__ import annotations

from relpos.ops.dispatch import FEW_SCORES, has_few_scores

from .cells import format_ratio, machine_note, markdown_table

__all__ = ["choice_section"]

CHOICE = """\
Native, tiled and reference were timed at {count} combinations of size, terms, dtype and pass
(`benchmarks/choice.py`; [`choice.json`](../benchmarks/results/choice.json) has them all). Native
counts as the fastest where no other takes {slack:.0%} less{rest}. The fastest was {counts}.

Without native, `"auto"` takes reference for up to {few} scores of several queries, in all heads and
sequences, else tiled. It took the slower of the two in {slower} of the {count} cases, {slowest:.1f}
times as long at worst: it goes by sizes alone, not by whether gradients are wanted, or the second
forward pass of checkpointing might not be the first one.

Measured on {machine}.
"""

SLACK = 1.05  # up to which native counts as the fastest


def choice_section(choice: dict) -> str:
    """How often each backend is the fastest, and where that is clearly not native."""
    rows = choice["choice"]
    counts: dict[str, int] = {}
    for row in rows:
        best = "native" if row["native_slower_by"] <= SLACK else row["fastest"]
        counts[best] = counts.get(best, 0) + 1
    counted = ", ".join(f"{name} at {count}" for name, count in counts.items())
    others = [
        [f"{row['queries']} x {row['keys']}, B={row['batch']}, H={row['heads']}",
         row["workload"], row["dtype"], row["pass"], row["fastest"],
         format_ratio(row["native_slower_by"]), row["auto"]]
        for row in rows
        if row["native_slower_by"] > SLACK
    ]  # fmt: skip
    slower_by = [_slower_by_without_native(row) for row in rows]
    head = ["queries x keys", "terms", "dtype", "pass", "fastest",
            "native takes times as long", '`"auto"` takes']  # fmt: skip
    note = CHOICE.format(
        count=len(rows), counts=counted, slack=SLACK - 1, machine=machine_note(choice["machine"]),
        few=FEW_SCORES, slower=sum(ratio > 1 for ratio in slower_by), slowest=max(slower_by),
        rest="; the table has the other cases" if others else "",
    )  # fmt: skip
    return "\n\n".join([note.strip(), *([markdown_table(head, others, 5)] if others else [])])


def _slower_by_without_native(row: dict) -> float:
    """What `"auto"` takes without native, as a multiple of the other of tiled and reference."""
    few = has_few_scores(row["batch"], row["heads"], row["queries"], row["keys"])
    tiled, reference = row["seconds"]["tiled"], row["seconds"]["reference"]
    return reference / tiled if few else tiled / reference
