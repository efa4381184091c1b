"""Attention over several processes on the pages: time, bytes, memory, overlap, and the plan."""

from __future__ import annotations

from ..measure.distributed import PAIRS, formula_mib
from ..measure.passes import BOTH, FORWARD
from .cells import format_ratio, machine_note, markdown_table, ratio_cell

__all__ = ["distributed_section", "distributed_verdict"]

TIME = """\
B=1, H=8, L={length}, d=64, float32, causal, Shaw's keys and values (64 either side), the zigzag
layout: two ranks of one pinned thread each, on gloo, as multiples of one process of one thread in
the same round. Two threads of one process stand beside them: what two cores can give here. No
figure is of more cores. "Apart" is how far the output of {pairs} tokens lies from that in float64
on one device, over its largest number.

Measured on {machine} (`benchmarks/distributed.py`).
"""

BYTES = """\
What the rank that sends most sends for one attention of {length} tokens, counted where it is sent,
and what the formulas of `relpos.distributed.cost` say (shards are even here).
"""

MEMORY = """\
L={length}: the peak of a rank's process over forward and backward, without what the libraries
take, as a multiple of one device's; beside it the tensors that the formulas count. Heads and ring
fall with the number of ranks. On a ring another rank's keys are held, and sums of gradients on
their way out and in, which for two ranks is nearly as much as they save. A mesh of two dimensions
holds queries, keys and values by tokens, and by heads besides.
"""

OVERLAP = """\
A ring of {ranks} ranks, L={length}, forward and backward: a hop of keys and values takes
{alone:.1f} ms while nothing is computed. While a rank computes, the keys of the next hop arrive:
it then waits {waited:.2f} ms for them at most. The last hop of the gradients, home, has nothing
left to hide behind. When each rank did what is in `benchmarks/results/distributed.json`
(`timeline`).
"""

PLAN = """\
`relpos plan` with the FLOP/s of one process ({flops:.3g}), and the bandwidth ({bandwidth:.3g}
bytes/s) and latency ({latency:.2g} s) of one hop between two that compute nothing, against what
ranks took at L={length}, on {machine}. More ranks than cores share them, in
the plan too. It leaves out what calls of the op, sums of parts and small exchanges cost.
"""


HOUR = """\
`examples/one_hour_of_speech.py` with random weights, through layers of width {width}. Memory is the
largest peak of a process, with weights, libraries, and what every process has whole: features,
output, and the positions of all offsets. {compared} frames lie so far apart from what the original
gives, over its largest number (`benchmarks/hour_of_speech.py`).
"""


def distributed_verdict(result: dict) -> str:
    """The figures that matter most, a line each."""
    lines = []
    for row in result.get("time", []):
        lines.append(f"{row['pass']}: {row['contender']}: {ratio_cell(row['ratio'])}")
    for row in result.get("memory", []):
        lines.append(f"P={row['ranks']}: {row['method']}: {row['ratio']:.2f} of the memory")
    if rows := result.get("plan", {}).get("rows"):
        lines.append(f"the plan is at most {max(abs(row['error']) for row in rows):.0%} off")
    return "\n".join(lines)


def distributed_section(result: dict, hour: dict) -> str:
    """Everything that was measured over several processes.

    Args:
        result: of `benchmarks.distributed`.
        hour: of `benchmarks.hour_of_speech`, with one process first.
    """
    timeline, plan = result["timeline"], result["plan"]
    waited = max(
        end - begin
        for of_rank in timeline["events"]
        for what, begin, end in of_rank
        if what == "wait for ring"
    )
    parts = [
        TIME.format(
            length=result["length"], pairs=PAIRS, machine=machine_note(result["machines"]["time"])
        ),
        _time_table(result["time"]),
        BYTES.format(length=result["bytes"][0]["length"]),
        markdown_table(
            ["ranks", "method", "forward, MiB", "formula", "forward + backward", "formula"],
            [[str(row["ranks"]), row["method"], *(f"{row[name] / 2**20:.2f}" for name in (
                "forward_bytes", "forward_formula", "both_bytes", "both_formula"))]
             for row in result["bytes"]], 2,
        ),
        MEMORY.format(length=result["memory"][0]["length"]),
        markdown_table(
            ["ranks", "method", "peak, MiB", "of one device's", "tensors by the formula, MiB"],
            [[str(row["ranks"]), row["method"], f"{row['peak_mib']:.0f}",
              format_ratio(row["ratio"]), f"{formula_mib(row):.0f}"]
             for row in result["memory"]], 2,
        ),
        OVERLAP.format(
            ranks=timeline["ranks"], length=timeline["length"],
            alone=1e3 * timeline["hop_alone_seconds"], waited=1e3 * waited,
        ),
        PLAN.format(
            **{name: plan[name] for name in ("flops", "bandwidth", "latency", "length")},
            machine=machine_note(result["machines"]["plan"]),
        ),
        markdown_table(
            ["ranks", "method", "pass", "measured, ms", "planned, ms", "error of the plan"],
            [[str(row["ranks"]), row["method"], row["pass"], f"{1e3 * row['seconds']:.0f}",
              f"{1e3 * row['planned']:.0f}", f"{row['error']:+.0%}"] for row in plan["rows"]], 3,
        ),
    ]  # fmt: skip
    parts += _hour(hour["rows"])
    return "\n\n".join(part.strip() for part in parts)


def _hour(rows: list[dict]) -> list[str]:
    alone = {(row["frames"], row["layers"]): row["peak_gib"]
             for row in rows if row["processes"] == 1}  # fmt: skip
    cells = []
    for row in rows:
        of_one = alone.get((row["frames"], row["layers"]))
        machine = row.get("machine")
        cells.append([
            f"{row['hours']:.2g}", f"{row['layers']}", f"{row['processes']}",
            f"{row['peak_gib']:.1f}", format_ratio(row["peak_gib"] / of_one) if of_one else "",
            f"{row['difference']:.0e}",
            f"{machine['processor']} ({machine['capability']}), {machine['commit']}"
            if machine else "not recorded",
        ])  # fmt: skip
    note = HOUR.format(compared=rows[0]["compared_frames"], width=rows[0]["width"])
    heads = [
        "hours",
        "layers",
        "processes",
        "peak, GiB",
        "of one process's",
        "apart",
        "measured on",
    ]
    return [note, markdown_table(heads, cells, 2)]


def _time_table(rows: list[dict]) -> str:
    found: dict[str, dict[str, dict]] = {}
    for row in rows:
        found.setdefault(row["contender"], {})[row["pass"]] = row
    cells = [
        [
            name,
            *(ratio_cell(passes[each]["ratio"]) for each in (FORWARD, BOTH)),
            _difference_cell(passes[FORWARD].get("difference")),
        ]
        for name, passes in found.items()
    ]
    return markdown_table(["computed by", FORWARD, BOTH, "apart"], cells)


def _difference_cell(difference: float | None) -> str:
    return "" if difference is None else f"{difference:.0e}"
