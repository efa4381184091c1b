"""The page of the benchmark, docs/benchmark.md, from the JSON of measured runs."""

from __future__ import annotations

from ..measure.passes import FORWARD
from .adapter_tables import gains_table, long_table
from .cells import (
    PASSES,
    by_contender,
    format_ratio,
    machine_note,
    markdown_table,
    milliseconds,
    ratio,
    ratio_cell,
)
from .choice_section import choice_section
from .distributed_section import distributed_section
from .local_section import local_section
from .small_calls_section import fixed_costs_table
from .target_tables import bounds_tables, target_tables
from .targets import (
    DECODING_TARGETS,
    GPU_TARGETS,
    HALF_TARGETS,
    SMALL_TARGETS,
    TARGETS,
    Target,
)

__all__ = ["benchmark_page"]

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

SIZES = "B={batch}, H={heads}, {queries} queries, {keys} keys, d={width}, {dtype}."

MEMORY = """\
A fresh process for each figure, which runs forward and backward once at a length of 64 and then at
the full one. Growth is what the second run adds to the inputs: the output and the gradients count.
"""

TRAINING = """\
Whole optimiser steps of the main job's relative model (Huang's keys in every layer, batches of its
preset), with the attention of each contender in its place; every round trains them all on the same
batches (`benchmarks/training.py`). Steps per second are medians; how many times as fast native is,
medians of the ratios within rounds.

Measured on {machine}.
"""

ON_GPU = """\
The unit is the fastest of torch's SDPA backends (flash, cuDNN, memory-efficient) at the same shape,
causal where the scheme is, found for each pass by timing them all. Times are by CUDA events, and
learned tables are in float32 and cast, as by autocast. For few tokens Python may take longer than
the kernels; "as graphs" both, the unit too, run as CUDA graphs, which leave it out. Memory is the
most that torch had allocated over one forward and backward pass, the inputs with it.

Measured on {machine}. What was checked there is in `gpu_trials.json`: each kind of term at 35, 729
and 2400 tokens, the same bits in 20 runs, CUDA graphs and `torch.compile`, compute-sanitizer's
memcheck and racecheck, the backend's suite in part.
"""

ON_GPU_MORE = """\
Beside the fastest SDPA in the same dtype, which in float32 is the memory-efficient one: like
`triton` it makes a float32 product as three of TF32. "grids" are many small ones, each with its own
attention.

Measured on {machine}.
"""

NOT_REACHED = """\
Before the time was over, {count} more schemes in other settings were not reached; `cuda.json` names
them.
"""

NO_GPU = """\
No GPU has run the kernels of `backend="triton"` yet. What is wanted of them, as multiples of the
fastest of torch's SDPA backends at the same shape (bfloat16, 16 heads, 16384 tokens in all):
"""


HALF = """\
The unit is plain SDPA in the same dtype. torch uses the matrix unit (AMX) of processors that have
one in bfloat16; relpos in float16 too, and in float32 after
`torch.set_float32_matmul_precision("high")` (SDPA's time is then the same as before). On others
relpos computes all of these in float32.

Measured on {machine}, with {instructions}; `python -m benchmarks.half` measures again on a
machine with AMX.
"""

HALF_ADAPTED = """\
### Adapted models in bfloat16

A layer and its attention, as on [the page of adapters](adapters.md), both models in bfloat16, on
the same machine.
"""

HALF_LONG = """\
In one pass with full attention, which the original cannot take: time, and the peak of the whole
process. Beside it stands how far a short input is from the original.
"""

HALF_VECTORS = """\
### On AVX-512 alone

Float16 on the same machine, where relpos is kept from its matrix unit; torch's products, by oneDNN,
are not.

Measured on {machine}, with {instructions}.
"""


DECODING = """\
One query, as in a step of decoding, or 8, as where some were guessed ahead, against cached keys; 8
query heads, which all have keys of their own or share one key head. The unit is plain SDPA in the
same dtype. A step is bound by reading the keys and values from memory. The fixed cost of a call
from Python, which SDPA has less of, counts in the shortest.

Measured on {machine}, with {instructions}; `python -m benchmarks.decoding` measures again.
"""

SMALL_CALLS = """\
64 tokens, 8 heads. The unit is plain SDPA in the same dtype. Terms are made beforehand, and their
tables are in the dtype of the call. Forward needs no gradients.

Measured on {machine}, with {instructions}; `python -m benchmarks.small_calls` measures again.
"""

FIXED_COSTS = """\
### Fixed cost of a call

What a call takes longer than plain SDPA at B=1, H=1, L={tokens}, d={width}, where there is next to
nothing to compute: microseconds, differences within rounds. Compiled: a function with that one
call, by `torch.compile`, which has a cost of its own.
"""

GENERATION = """\
The music model with random weights draws {tokens} tokens with its cache (`benchmarks.generation`),
with Huang's or Shaw's relative terms in every layer, and without any. Tokens per second are medians
over the whole and over the last {last} tokens; ratios are medians of those within a round.

Measured on {machine}, with {instructions}.
"""


def benchmark_page(
    result: dict,
    choice: dict,
    trained: dict,
    local: dict,
    half: dict,
    decoding: dict,
    generation: dict,
    small_calls: dict,
    distributed: tuple[dict, dict],
    gpu_result: dict | None = None,
    more_gpu_result: dict | None = None,
) -> str:
    """The whole page; without a GPU's result, the targets for one."""
    parts = [
        HEAD.format(machine=machine_note(result["machine"])),
        "## Targets", target_tables(result, TARGETS),
        "## Time", *(time_section(result, name) for name in _timed_settings(result)),
        "## Memory", MEMORY, memory_table(result),
        "## 16 bits, and matrix units", half_section(half),
        "## Decoding", settings_section(DECODING, decoding, DECODING_TARGETS),
        "## Generation", generation_section(generation),
        "## Small calls", small_calls_section(small_calls),
        "## Local attention", local_section(local),
        "## Several processes", distributed_section(*distributed),
        "## Steps of the main job", training_section(trained),
        '## What `"auto"` is to choose', choice_section(choice),
        *(without_gpu() if gpu_result is None else on_gpu(gpu_result)),
        *([] if more_gpu_result is None else on_gpu_more(more_gpu_result)),
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _measured_on(machine: dict) -> dict[str, str]:
    return {"machine": machine_note(machine), "instructions": machine["instructions"].upper()}


def half_section(result: dict) -> str:
    """What matrix units are for: calls, and adapted models."""
    commits = ", ".join(sorted(set(result["commits"].values())))
    measured = result | {"machine": result["machine"] | {"commit": commits}}
    parts = [settings_section(HALF, measured, HALF_TARGETS)]
    if "adapted" in result:
        parts += [HALF_ADAPTED.strip(), gains_table({"time": result["adapted"]})]
    if "long" in result:
        parts += [HALF_LONG.strip(), long_table(result)]
    if "vectors" in result:
        vectors = result["vectors"]
        targets = tuple(one for one in HALF_TARGETS if one.setting in vectors["settings"])
        parts.append(settings_section(HALF_VECTORS, vectors, targets))
    return "\n\n".join(parts)


def settings_section(note: str, result: dict, targets: tuple[Target, ...]) -> str:
    """What the calls of some settings cost, their targets first.

    Args:
        note: what is measured, with places for the machine and its instructions.
        result: as `measure_settings` gives it.
        targets: of these settings.
    """
    tables = [time_section(result, name) for name in _timed_settings(result)]
    words = note.format(**_measured_on(result["machine"])).strip()
    return "\n\n".join([words, target_tables(result, targets), *tables])


def small_calls_section(result: dict) -> str:
    """Ratios to plain SDPA of short sequences, and the fixed cost of a call."""
    parts = [settings_section(SMALL_CALLS, result, SMALL_TARGETS)]
    fixed = result["fixed_costs"]
    if fixed["rows"]:
        note = FIXED_COSTS.format(tokens=fixed["tokens"], width=fixed["width"])
        parts += [note.strip(), fixed_costs_table(fixed)]
    return "\n\n".join(parts)


def generation_section(result: dict) -> str:
    """Tokens per second of the music model."""
    rows = [
        [row["model"], row["position"], f"{row['tokens_per_second']['median']:.0f}",
         f"{row['last_tokens_per_second']['median']:.0f}", format_ratio(row["ratio"]["median"]),
         format_ratio(row["last_ratio"]["median"])]
        for row in result["generation"]
    ]  # fmt: skip
    head = ["model", "positions", "tokens/s", "of the last", "time, as a multiple of none",
            "of the last"]  # fmt: skip
    note = GENERATION.format(
        tokens=result["tokens"], last=result["last"], **_measured_on(result["machine"])
    )
    return "\n\n".join([note.strip(), markdown_table(head, rows, 2)])


def on_gpu(result: dict) -> list[str]:
    """What was measured on a GPU, its targets first."""
    left_out = [
        [row["setting"], row["workload"], row["contender"], row["reason"].replace("|", "/")]
        for row in result["left_out"]
        if not row["reason"].endswith("minutes were over")
    ]
    not_reached = len(result["left_out"]) - len(left_out)
    head = ["setting", "scheme", "computed by", "why"]
    return [
        "## On a GPU", ON_GPU.format(machine=machine_note(result["machine"])),
        target_tables(result, GPU_TARGETS),
        *(time_section(result, name) for name in _timed_settings(result)),
        "### Memory on a GPU", memory_table(result, "peak", "ratio of peaks"),
        *(["### Left out", markdown_table(head, left_out, 4)] if left_out else []),
        *([NOT_REACHED.format(count=not_reached)] if not_reached else []),
    ]  # fmt: skip


def on_gpu_more(result: dict) -> list[str]:
    """Float32 and grids, for which there are no targets."""
    return [
        "## Float32 and grids on a GPU",
        ON_GPU_MORE.format(machine=machine_note(result["machine"])),
        *(time_section(result, name) for name in _timed_settings(result)),
        "### Memory, in float32 and of grids", memory_table(result, "peak", "ratio of peaks"),
    ]  # fmt: skip


def without_gpu() -> list[str]:
    """The targets of which nothing is known."""
    tables = bounds_tables({"time": [], "memory": []}, GPU_TARGETS)
    return ["## On a GPU: not measured", NO_GPU, tables]


def _timed_settings(result: dict) -> list[str]:
    return list(dict.fromkeys(row["setting"] for row in result["time"]))


def time_section(result: dict, name: str) -> str:
    """Ratios to plain SDPA of every contender in the setting of that name."""
    sizes = result["settings"][name]
    labels = [label for label in PASSES if label == FORWARD or sizes["backward"]]
    as_graphs = labels if sizes.get("captured") else []
    rows = [
        [scheme, contender, *(ratio(passes, label) for label in labels),
         *(_of_graphs(passes, label) for label in as_graphs),
         milliseconds(passes[FORWARD]["seconds"]["median"]), f"{passes[FORWARD]['error']:.0e}"]
        for (scheme, contender), passes in by_contender(result, name).items()
    ]  # fmt: skip
    head = ["scheme", "computed by", *labels, *(f"{label}, as graphs" for label in as_graphs),
            "forward, ms", "error"]  # fmt: skip
    keys = sizes["queries"] if sizes["keys"] is None else sizes["keys"]
    note = SIZES.format(**sizes | {"keys": keys})
    return f"### {name}\n\n{note}\n\n{markdown_table(head, rows, 2)}"


def _of_graphs(passes: dict[str, dict], label: str) -> str:
    found = passes.get(label, {}).get("captured", {}).get("ratio")
    return "not measured" if found is None else ratio_cell(found)


def memory_table(
    result: dict, peak: str = "whole process", peak_ratio: str = "ratio of processes"
) -> str:
    """Peaks and growth beside plain SDPA's; `peak` and `peak_ratio` are heads of columns."""
    rows = [
        [f"{row['workload']}, L={result['settings'][row['setting']]['queries']}", row["contender"],
         f"{row['growth_mib']:.0f}", f"{row['unit_growth_mib']:.0f}",
         f"{row['peak_mib']:.0f}", f"{row['unit_peak_mib']:.0f}", f"{row['peak_ratio']:.2f}"]
        for row in result["memory"]
    ]  # fmt: skip
    head = ["scheme", "computed by", "growth, MiB", "plain SDPA's",
            f"{peak}, MiB", "plain SDPA's", peak_ratio]  # fmt: skip
    return markdown_table(head, rows, 2)


def training_section(trained: dict) -> str:
    """Steps per second of the main job's model."""
    rows = [
        [f"{row['window']} tokens", row["contender"], format_ratio(row["steps_per_second"]),
         format_ratio(row["native_is_faster_by"])]
        for row in trained["training"]
    ]  # fmt: skip
    head = ["window", "attention by", "steps per second", "native is faster by"]
    note = TRAINING.format(machine=machine_note(trained["machine"]))
    return f"{note.strip()}\n\n{markdown_table(head, rows, 2)}"
