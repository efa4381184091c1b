"""Tables of what the op costs, for the README and the pages on GPUs and on local attention."""

from __future__ import annotations

from ..measure.passes import BOTH, FORWARD
from ..workloads.gpu_settings import GPU_SETTINGS, MORE_GPU_SETTINGS, RIVALS_SUFFIX
from ..workloads.workload import NATIVE, TILED, TRITON
from .cells import (
    PASSES,
    by_contender,
    format_ratio,
    machine_note,
    markdown_table,
    ratio,
)
from .local_section import local_table, maps_note, maps_table
from .targets import GPU_TARGETS, TARGETS, verdict

__all__ = ["gpu_excerpt", "gpu_part", "half_part", "local_part", "memory_table", "time_table"]

SETTING = "L=2048"
# Settings of `results/half.json`.
HALF_DTYPES = {
    "bfloat16": "bfloat16, d=64",
    "float16": "float16, d=64",
    'float32, `"high"`': "float32 (high), d=64",
}
# Of `cuda.json` and of `cuda_more.json`, in which all but the dtype is equal.
GPU_SIZES = {"bfloat16": "L=4096, B=4, d=64", "float32": "L=4096, B=4, d=64, float32"}
NO_GPU = "On a GPU: not measured."


def time_table(result: dict) -> str:
    """Ratios to plain SDPA, the compiled kernel's first, and how much longer the rivals take."""
    found, sizes = by_contender(result, SETTING), result["settings"][SETTING]
    ours, rivals = [], []
    for scheme in sizes["workloads"]:
        native, tiled = (found.get((scheme, f"relpos {name}"), {}) for name in ("native", "tiled"))
        error = f"{native['forward']['error']:.0e}" if native else "none"
        ours.append([scheme, *(ratio(native, label) for label in PASSES),
                     *(ratio(tiled, label, spread=False) for label in PASSES), error])  # fmt: skip
    for (scheme, contender), passes in found.items():
        if not contender.startswith("relpos"):
            times = [ratio(passes, label, NATIVE, spread=False) for label in PASSES]
            rivals.append([contender, scheme, *times])
    note = (
        f"Time as a multiple of plain `scaled_dot_product_attention` (causal where the scheme is): "
        f"medians of ratios within interleaved rounds, 20th to 80th percentile; largest "
        f"difference of native's output from float64. B={sizes['batch']}, "
        f"H={sizes['heads']}, L={sizes['queries']}, d={sizes['width']}, "
        f"{sizes['dtype']}, {machine_note(result['machine'])}."
    )
    head = ["scheme", "native, forward", "forward + backward",
            "tiled, forward", "forward + backward", "error"]  # fmt: skip
    beside = (
        "How many times as long as native others take (FlexAttention has no backward on the CPU):"
    )
    rivals_head = ["what people run", "scheme", "forward", "forward + backward"]
    measured = sum(target.measured(result) is not None for target in TARGETS)
    missed = sum(target.missed(result) for target in TARGETS)
    summary = (
        f"[docs/benchmark.md](docs/benchmark.md) has other lengths, few heads, bfloat16, decoding "
        f"and short sequences, and {len(TARGETS)} targets for CPUs: {measured} measured, "
        f"{missed} missed."
    )
    return "\n\n".join(
        [note, markdown_table(head, ours), beside, markdown_table(rivals_head, rivals, 2), summary]
    )


def memory_table(result: dict) -> str:
    """Peaks of processes at the longest length."""
    sizes = result["settings"]
    longest = max(sizes[row["setting"]]["queries"] for row in result["memory"])
    rows = [
        [row["workload"],
         f"{row['growth_mib']:.0f} ({row['unit_growth_mib']:.0f})",
         f"{row['peak_mib']:.0f} ({row['unit_peak_mib']:.0f})", format_ratio(row["peak_ratio"])]
        for row in result["memory"]
        if sizes[row["setting"]]["queries"] == longest and row["contender"] == NATIVE
    ]  # fmt: skip
    head = ["scheme", "growth, MiB", "whole process, MiB", "ratio"]
    note = (
        f"Peak memory of a fresh process over forward and backward by native at L={longest}, B=1, "
        "H=8, in brackets that of plain SDPA, and the ratio of the processes."
    )
    return f"{note}\n\n{markdown_table(head, rows)}"


def half_part(result: dict) -> str:
    """16 bits and split float32, at the sizes of `HALF_DTYPES`."""
    settings = {dtype: by_contender(result, name) for dtype, name in HALF_DTYPES.items()}
    sizes = result["settings"][next(iter(HALF_DTYPES.values()))]
    rows = [
        [scheme, *(ratio(found.get((scheme, NATIVE), {}), label, spread=False)
                   for found in settings.values() for label in PASSES)]
        for scheme in sizes["workloads"]
    ]  # fmt: skip
    note = (
        "In 16 bits, and in float32 where torch may make its products with less, on a processor "
        "with a matrix unit (AMX): time as a multiple of plain SDPA in the same dtype. "
        f"B={sizes['batch']}, H={sizes['heads']}, L={sizes['queries']}, d={sizes['width']}, "
        f"{machine_note(result['machine'] | {'commit': result['commits']['time']})}."
    )
    head = ["scheme", *(cell for dtype in settings for cell in (dtype, "with backward"))]
    return f"{note}\n\n{markdown_table(head, rows)}"


def local_part(result: dict) -> str:
    """Local attention beside its floor and FlexAttention."""
    note = (
        "Time as a multiple of the floor, which is the share of pairs that takes part times plain "
        "SDPA's time over all pairs; in square brackets as a multiple of plain SDPA's. "
        f"B=1, H=8, L={result['length']}, d=64, float32, {machine_note(result['machine'])}."
    )
    maps = (
        "Neighbourhoods of maps with learned biases, likewise (float32, the sizes of NAT's first "
        f"two stages, and larger maps; {maps_note(result)})."
    )
    return f"{note}\n\n{local_table(result)}\n\n{maps}\n\n{maps_table(result)}"


def gpu_table(result: dict) -> str:
    """Ratios to the fastest SDPA on a GPU, and what became of the targets."""
    rows = [
        [one.name, scheme, ratio(passes, FORWARD),
         ratio(passes, BOTH) if one.backward else "no backward",
         f"{passes[FORWARD]['error']:.0e}"]
        for one in GPU_SETTINGS if RIVALS_SUFFIX not in one.name
        for (scheme, contender), passes in by_contender(result, one.name).items()
        if contender == TRITON
    ]  # fmt: skip
    note = (
        "On a GPU, as a multiple of the fastest of torch's SDPA backends (causal where the scheme "
        "is): medians of ratios within interleaved rounds, 20th to 80th percentile; largest "
        f"difference from float64. H=16, bfloat16, {machine_note(result['machine'])}."
    )
    head = ["setting", "scheme", "triton, forward", "forward + backward", "error"]
    return "\n\n".join(
        [note, markdown_table(head, rows, 2), verdict(result, GPU_TARGETS).splitlines()[-1] + "."]
    )


def more_gpu_table(result: dict) -> str:
    """The same in float32, and for other grids, beside the blockwise backend."""
    rows = []
    for one in MORE_GPU_SETTINGS:
        found = by_contender(result, one.name)
        for scheme in dict.fromkeys(scheme for scheme, _ in found):
            ours = found.get((scheme, TRITON))
            if ours is None:  # left out, as the page of all says
                continue
            blockwise = found.get((scheme, TILED), {})
            cells = [ratio(passes, label) for label in PASSES for passes in (ours, blockwise)]
            rows.append([one.name, scheme, *cells, f"{ours[FORWARD]['error']:.0e}"])
    note = f"In float32, and for grids in bfloat16, likewise, {machine_note(result['machine'])}."
    head = ["setting", "scheme"]
    head += [f"{backend}, {label}" for label in PASSES for backend in ("triton", "tiled")]
    return f"{note}\n\n{markdown_table([*head, 'error'], rows, 2)}"


def gpu_excerpt(result: dict | None, more: dict | None) -> str:
    """The Triton kernels at one size, in 16 bits and in float32, each as far as it was timed."""
    results = {
        dtype: found
        for dtype, found in (("bfloat16", result), ("float32", more))
        if found is not None
    }
    if not results:
        return NO_GPU
    timed = [by_contender(found, GPU_SIZES[dtype]) for dtype, found in results.items()]
    schemes = dict.fromkeys(
        scheme for found in timed for scheme, contender in found if contender == TRITON
    )
    rows = [
        [scheme, *(ratio(found.get((scheme, TRITON), {}), label, spread=False)
                   for found in timed for label in PASSES)]
        for scheme in schemes
    ]  # fmt: skip
    where = "; ".join(
        f"{dtype} on {machine_note(found['machine'])}" for dtype, found in results.items()
    )
    note = (
        "On a GPU, time as a multiple of the fastest of torch's SDPA backends in the same dtype. "
        f"{GPU_SIZES['bfloat16']}, H=16; {where}."
    )
    head = ["scheme", *(cell for dtype in results for cell in (dtype, "with backward"))]
    return f"{note}\n\n{markdown_table(head, rows)}"


def gpu_part(result: dict | None, more: dict | None) -> str:
    """What was measured on GPUs."""
    if result is None:
        return NO_GPU
    return gpu_table(result) if more is None else f"{gpu_table(result)}\n\n{more_gpu_table(more)}"
