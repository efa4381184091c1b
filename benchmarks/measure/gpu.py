"""Time and memory on a GPU: each scheme beside the fastest of torch's SDPA backends.

A contender that raises an error, runs out of memory or takes too long is left out, with its reason.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..files import save
from ..workloads.gpu_settings import GpuSetting
from ..workloads.schemes import make_workload
from ..workloads.workload import UNIT, Run, Workload, contenders, inputs
from .fastest_sdpa import fastest_sdpa
from .machine import gpu, machine
from .passes import errors, float32_products, passes, rows_of_pass
from .timing import interleaved, percentiles, ratios

__all__ = ["captured", "describe", "event_clock", "measure_on_gpu"]

T = TypeVar("T")
_LONGEST = 2.0  # seconds of one forward and backward


def event_clock(run: Callable[[], object], repeats: int) -> float:
    """The seconds of one run between two CUDA events; a run before them keeps the GPU busy."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats


def enqueue_seconds(run: Callable[[], object]) -> float:
    """The seconds that Python takes to enqueue a run; the GPU waits where they are more."""
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return median(seconds)


def captured(run: Callable[[], T]) -> tuple[Callable[[], object], T]:
    """A replay of what a run launches, as a CUDA graph, and the result that each replay writes."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


def as_graphs(
    unit: Callable[[], object], run: Callable[[], object], seconds: float
) -> dict[str, Any]:
    """The ratio of two runs as CUDA graphs, and the seconds of each; or why it cannot be had."""
    try:
        graphs = {UNIT: captured(unit)[0], "run": captured(run)[0]}
    except Exception as error:  # whatever is not allowed in a graph
        return {"reason": describe(error)}
    rounds = interleaved(graphs, leading=tuple(graphs), seconds=seconds, clock=event_clock)
    return {
        "ratio": percentiles(ratios(rounds, "run", UNIT)),
        "seconds": percentiles([timings["run"] for timings in rounds]),
        "unit_seconds": percentiles([timings[UNIT] for timings in rounds]),
    }


def peak_memory(run: Callable[[], object]) -> dict[str, float]:
    """The most allocated during a run, with what was there (the inputs) and without, in MiB."""
    free_memory()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    return {"growth_mib": (peak - before) / 2**20, "peak_mib": peak / 2**20}


def free_memory() -> None:
    """Give what nobody holds back to the device."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def supported(
    setting: GpuSetting, workload: Workload, tensors: list[Tensor]
) -> tuple[dict[str, Run], dict[str, str]]:
    """The contenders that run here, compiled and warm, and why others do not."""
    runs, reasons = {}, {}
    for name, run in contenders(setting, workload).items():
        if name == UNIT:
            continue
        try:
            for timed in passes(setting, workload, {name: run}, tensors).values():
                timed[name]()
                seconds = event_clock(timed[name], 1)
        except Exception as error:  # whatever a rival raises is the reason
            reasons[name] = describe(error)
        else:
            if seconds <= _LONGEST:
                runs[name] = run
            else:
                reasons[name] = f"one forward and backward takes {seconds:.1f} s"
        free_memory()
    return runs, reasons


def describe(error: Exception) -> str:
    """The kind of an error and the first line of its message."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:300]}"


def measure_scheme(setting: GpuSetting, scheme: str) -> dict[str, list[dict]]:
    """One scheme in one setting: rows of time and memory, and what was left out."""
    with float32_products(setting.precision):
        return _measure_scheme(setting, scheme)


def _measure_scheme(setting: GpuSetting, scheme: str) -> dict[str, list[dict]]:
    torch.compiler.reset()  # or FlexAttention would run uncompiled after its eighth shape
    workload, tensors = make_workload(scheme, setting), inputs(setting)
    # One query that sees everything needs no mask.
    causal = workload.causal and setting.queries == setting.length
    units = fastest_sdpa(setting, causal, event_clock)
    runs, reasons = supported(setting, workload, tensors)
    rows = {"time": [], "memory": [], "left_out": rows_left_out(setting, scheme, reasons)}
    if not runs:
        return rows
    error = errors(workload, runs, tensors)
    free_memory()
    timed = {}
    for pass_name, (unit, run) in units.items():
        timed = passes(setting, workload, {UNIT: run} | runs, tensors)[pass_name]
        timings = rows_of_pass(setting, scheme, pass_name, timed, error, clock=event_clock)
        for row in timings:
            row["unit"] = unit
            row["enqueue_seconds"] = enqueue_seconds(timed[row["contender"]])
            if setting.captured:
                graphs = as_graphs(timed[UNIT], timed[row["contender"]], setting.seconds)
                row["captured"] = graphs
                told = graphs.get("reason") or f"{graphs['ratio']['median']:.2f} x plain"
                print(f"{'':27}as CUDA graphs: {told}", flush=True)
            if row["enqueue_seconds"] > row["seconds"]["median"]:
                print(f"{'':27}of which Python takes {1e3 * row['enqueue_seconds']:.2f} ms")
        rows["time"] += timings
    rows["memory"] = rows_of_memory(setting, scheme, timed)  # of forward and backward
    return rows


def rows_of_memory(
    setting: GpuSetting, scheme: str, timed: dict[str, Callable[[], None]]
) -> list[dict]:
    """The peak of each contender, with the unit's beside it."""
    unit = peak_memory(timed[UNIT])
    rows = []
    for contender, run in timed.items():
        if contender != UNIT:
            measured = peak_memory(run)
            rows.append(
                {"setting": setting.name, "workload": scheme, "contender": contender}
                | measured
                | {f"unit_{key}": value for key, value in unit.items()}
                | {"peak_ratio": measured["peak_mib"] / unit["peak_mib"]}
            )
    return rows


def rows_left_out(setting: GpuSetting, scheme: str, reasons: dict[str, str]) -> list[dict]:
    """A row for each contender that was left out, with its reason."""
    rows = []
    for contender, reason in reasons.items():
        rows.append(
            {"setting": setting.name, "workload": scheme, "contender": contender, "reason": reason}
        )
        print(f"{setting.name:26} {scheme:26} {contender:22} left out: {reason}", flush=True)
    return rows


def pairs(settings: tuple[GpuSetting, ...]) -> Iterator[tuple[GpuSetting, str]]:
    """Every setting with each of its schemes, in order."""
    for setting in settings:
        for scheme in setting.schemes:
            yield setting, scheme


def measure_on_gpu(settings: tuple[GpuSetting, ...], out: Path, minutes: float) -> dict:
    """Measure what fits into so many minutes; `out` is written after every scheme."""
    end = time.monotonic() + 60 * minutes
    result: dict = {
        "machine": machine() | gpu(),
        "settings": {setting.name: setting.as_json() for setting in settings},
        "time": [], "memory": [], "left_out": [],
    }  # fmt: skip
    for setting, scheme in pairs(settings):
        if time.monotonic() > end:
            reason = f"the {minutes:g} minutes were over"
            rows = {"left_out": rows_left_out(setting, scheme, {"all": reason})}
        else:
            try:
                rows = measure_scheme(setting, scheme)
                free_memory()
            except Exception as error:  # the next scheme may run all the same
                rows = {"left_out": rows_left_out(setting, scheme, {"all": describe(error)})}
        for part, more in rows.items():
            result[part] += more
        save(out, result)
    return result
