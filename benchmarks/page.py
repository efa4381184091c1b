"""The page of the benchmark, docs/benchmark.md, from the JSON of measured runs."""

from __future__ import annotations

from figures import PASSES, amount, by_contender, grid, machine_note, milliseconds, ratio
from targets import CUDA_TARGETS, TARGETS, Target, notes

__all__ = ["page"]

HEAD = """\
# What the op costs

<!-- Written by benchmarks/tables.py from benchmarks/results. -->

The unit is plain `scaled_dot_product_attention` at the same shape, causal where the scheme is: a
ratio of 1.10 is ten percent more time than attention without any positions. Every round runs the
unit and each contender; a ratio is taken within its round, and its median and its 20th to 80th
percentiles are listed. Errors are the largest difference of the output from float64. Batch, heads
and width are B=2, H=8, d=64 and numbers are float32 where nothing else is said.

Measured on {machine}. `make bench` measures again and writes this page.
"""

SETTINGS = "B={batch}, H={heads}, {queries} queries, {keys} keys, d={width}, {dtype}."

MEMORY = """\
A fresh process for each figure, which runs forward and backward once at a length of 64 and then at
the full one. Growth is what the second run adds to the inputs: the output and the gradients count.
"""

CHOICE = """\
Native, tiled and reference were timed at {count} combinations of size, terms, dtype and pass
(`benchmarks/choice.py`; [`choice.json`](../benchmarks/results/choice.json) has them all). Native
counts as the fastest where no other takes {slack:.0%} less{rest}. The fastest was {counts}.

Without native, `"auto"` takes tiled, which was faster than reference in {tiled} of the {count}
cases. Those in which it took longer are short calls in training above all ({slowest:.1f} times as
long at worst): `"auto"` does not choose by whether gradients are wanted, or the second forward pass
of checkpointing might not be the first one.

Measured on {machine}.
"""

TRAINING = """\
Whole optimiser steps of the main job's relative model (Huang's keys in every layer, batches of its
preset), with the attention of each contender in its place; every round trains them all on the same
batches (`benchmarks/training.py`). Steps per second are medians; how many times as fast native is,
medians of the ratios within rounds.

Measured on {machine}.
"""

CUDA = """\
The unit is the fastest of torch's SDPA backends (flash, cuDNN, memory-efficient) at the same shape,
causal where the scheme is, found for each pass by timing them all. Times are by CUDA events, and
learned tables are in float32 and cast, as by autocast. Memory is the most that torch had allocated
over one forward and backward pass, the inputs with it.

Measured on {machine}.
"""

NO_CUDA = """\
No GPU has run the kernels of `backend="triton"` yet. What is wanted of them, as multiples of the
fastest of torch's SDPA backends at the same shape (bfloat16, 16 heads, 16384 tokens in all):
"""

SLACK = 1.05


def page(result: dict, choice: dict, trained: dict, cuda: dict | None = None) -> str:
    """The whole page; without a GPU's result, what is wanted of one."""
    parts = [
        HEAD.format(machine=machine_note(result["machine"])),
        "## Targets", targets(result, TARGETS),
        "## Time", *(time(result, name) for name in _timed(result)),
        "## Memory", MEMORY, memory(result),
        "## Steps of the main job", training(trained),
        '## What `"auto"` is to choose', choices(choice),
        *(without_cuda() if cuda is None else on_cuda(cuda)),
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts) + "\n"


def on_cuda(cuda: dict) -> list[str]:
    """What was measured on a GPU, its targets first."""
    left = [
        [row["scene"], row["case"], row["contender"], row["reason"].replace("|", "/")]
        for row in cuda["left_out"]
    ]
    head = ["scene", "scheme", "computed by", "why"]
    return [
        "## On a GPU", CUDA.format(machine=machine_note(cuda["machine"])),
        targets(cuda, CUDA_TARGETS),
        *(time(cuda, name) for name in _timed(cuda)),
        "### Memory on a GPU", memory(cuda, "peak", "ratio of peaks"),
        *(["### Left out", grid(head, left, 4)] if left else []),
    ]  # fmt: skip


def without_cuda() -> list[str]:
    """The targets of which nothing is known."""
    return ["## On a GPU: not measured", NO_CUDA, bounds({"time": [], "memory": []}, CUDA_TARGETS)]


def targets(result: dict, wanted: tuple[Target, ...]) -> str:
    """Each group of targets with what was measured, then the missed ones with their notes."""
    return "\n\n".join([bounds(result, wanted), "### Missed", missed(result, wanted)])


def bounds(result: dict, wanted: tuple[Target, ...]) -> str:
    """Each group of targets with what was measured."""
    groups: dict[str, dict[tuple[str, str, str], dict[str, Target]]] = {}
    for one in wanted:
        row = one.scene, one.case, one.own
        groups.setdefault(one.group, {}).setdefault(row, {})[one.label] = one
    parts = []
    for group, rows in groups.items():
        labels = list(dict.fromkeys(label for row in rows.values() for label in row))
        rivals = any(next(iter(row.values())).least for row in rows.values())
        bound = "at least" if rivals else "at most"
        head = ["scene", "scheme", *(["rival"] if rivals else [])]
        head += [cell for label in labels for cell in (label.replace("+", " + "), bound)]
        cells = [
            [scene, case, *([own] if rivals else []),
             *(cell for label in labels for cell in _cells(row.get(label), result))]
            for (scene, case, own), row in rows.items()
        ]  # fmt: skip
        parts.append(f"### {group}\n\n{grid(head, cells, 2 + rivals)}")
    return "\n\n".join(parts)


def _cells(target: Target | None, result: dict) -> tuple[str, str]:
    if target is None:
        return "", ""
    value, bound = target.measured(result), f"{target.bound:g}"
    if value is None:
        return "not measured", bound
    return (f"**{amount(value)}, missed**" if target.missed(result) else amount(value)), bound


def missed(result: dict, wanted: tuple[Target, ...]) -> str:
    """The missed targets, with what was written about them."""
    written = notes()
    lines = [
        f"- {one.name}: {amount(one.measured(result) or 0)} in place of {one.bound:g}. "
        + written.get(one.name, "")
        for one in wanted
        if one.missed(result)
    ]
    return "\n".join(line.strip() for line in lines) or "None."


def _timed(result: dict) -> list[str]:
    return list(dict.fromkeys(row["scene"] for row in result["time"]))


def time(result: dict, scene: str) -> str:
    """Ratios to plain SDPA of every contender in a scene."""
    settings = result["scenes"][scene]
    rows = [
        [case, contender, *(ratio(passes, label) for label in PASSES if _has(settings, label)),
         milliseconds(passes["forward"]["seconds"]["median"]), f"{passes['forward']['error']:.0e}"]
        for (case, contender), passes in by_contender(result, scene).items()
    ]  # fmt: skip
    head = ["scheme", "computed by", *(label for label in PASSES if _has(settings, label))]
    keys = settings["queries"] if settings["keys"] is None else settings["keys"]
    told = SETTINGS.format(**settings | {"keys": keys})
    return f"### {scene}\n\n{told}\n\n{grid([*head, 'forward, ms', 'error'], rows, 2)}"


def _has(settings: dict, label: str) -> bool:
    return label == "forward" or settings["backward"]


def memory(result: dict, whole: str = "whole process", ratio: str = "ratio of processes") -> str:
    """Peaks and growth beside plain SDPA's."""
    rows = [
        [f"{row['case']}, L={result['scenes'][row['scene']]['queries']}", row["contender"],
         f"{row['growth_mib']:.0f}", f"{row['unit_growth_mib']:.0f}",
         f"{row['peak_mib']:.0f}", f"{row['unit_peak_mib']:.0f}", f"{row['peak_ratio']:.2f}"]
        for row in result["memory"]
    ]  # fmt: skip
    head = ["scheme", "computed by", "growth, MiB", "plain SDPA's",
            f"{whole}, MiB", "plain SDPA's", ratio]  # fmt: skip
    return grid(head, rows, 2)


def training(trained: dict) -> str:
    """Steps per second of the main job's model."""
    rows = [
        [f"{row['window']} tokens", row["contender"], amount(row["steps_per_second"]),
         amount(row["native_is_faster_by"])]
        for row in trained["training"]
    ]  # fmt: skip
    head = ["window", "attention by", "steps per second", "native is faster by"]
    note = TRAINING.format(machine=machine_note(trained["machine"]))
    return f"{note.strip()}\n\n{grid(head, rows, 2)}"


def choices(choice: dict) -> str:
    """How often each backend is fastest, and where that is clearly not native."""
    rows = choice["choice"]
    counts: dict[str, int] = {}
    for row in rows:
        best = "native" if row["native_slower_by"] <= SLACK else row["fastest"]
        counts[best] = counts.get(best, 0) + 1
    told = ", ".join(f"{name} at {count}" for name, count in counts.items())
    others = [
        [f"{row['queries']} x {row['keys']}, B={row['batch']}, H={row['heads']}", row["case"],
         row["dtype"], row["pass"], row["fastest"], amount(row["native_slower_by"]), row["auto"]]
        for row in rows
        if row["native_slower_by"] > SLACK
    ]  # fmt: skip
    slower = [row["seconds"]["tiled"] / row["seconds"]["reference"] for row in rows]
    head = ["queries x keys", "terms", "dtype", "pass", "fastest",
            "native takes times as long", '`"auto"` takes']  # fmt: skip
    note = CHOICE.format(
        count=len(rows), counts=told, slack=SLACK - 1, machine=machine_note(choice["machine"]),
        tiled=sum(ratio < 1 for ratio in slower), slowest=max(slower),
        rest="; the table has the other cases" if others else "",
    )  # fmt: skip
    return "\n\n".join([note.strip(), *([grid(head, others, 5)] if others else [])])
