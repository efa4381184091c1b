"""Time and memory on a GPU: each case beside the fastest of torch's SDPA backends.

A contender that refuses, runs out of memory or takes too long is left out, with its reason.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from cases import UNIT, Case, Run, contenders, inputs, make_case
from comparing import errors, passes, rows
from cuda_scenes import CudaScene
from figures import save
from machine import gpu, machine
from units import fastest

__all__ = ["measure"]

_LONGEST = 2.0  # seconds of one forward and backward


def clock(run: Callable[[], object], repeats: int) -> float:
    """The seconds of one run between two events; a run before them keeps the GPU busy."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats


def enqueued(run: Callable[[], object]) -> float:
    """The seconds in which Python hands a run to the GPU, which waits where they are more."""
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return median(taken)


def peak(run: Callable[[], object]) -> dict[str, float]:
    """What a run allocates at most with what was there (the inputs), and that alone, in MiB."""
    release()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated()
    return {"growth_mib": (most - before) / 2**20, "peak_mib": most / 2**20}


def release() -> None:
    """Give back what nobody holds."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def willing(
    scene: CudaScene, case: Case, tensors: list[Tensor]
) -> tuple[dict[str, Run], dict[str, str]]:
    """The contenders that run here, compiled and warm, and why others do not."""
    runs, reasons = {}, {}
    for name, run in contenders(scene, case).items():
        if name == UNIT:
            continue
        try:
            for timed in passes(scene, case, {name: run}, tensors).values():
                timed[name]()
                lasted = clock(timed[name], 1)
        except Exception as error:  # whatever a rival raises is the reason
            reasons[name] = told(error)
        else:
            if lasted <= _LONGEST:
                runs[name] = run
            else:
                reasons[name] = f"one forward and backward takes {lasted:.1f} s"
        release()
    return runs, reasons


def told(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:300]}"


def compare(scene: CudaScene, name: str) -> dict[str, list[dict]]:
    """One case in one scene: rows of time and memory, and what was left out."""
    torch.compiler.reset()  # or FlexAttention would run uncompiled after its eighth shape
    case, tensors = make_case(name, scene), inputs(scene)
    units = fastest(scene, case.causal, clock)
    runs, reasons = willing(scene, case, tensors)
    found = {"time": [], "memory": [], "left_out": left_out(scene, name, reasons)}
    if not runs:
        return found
    error = errors(case, runs, tensors)
    release()
    timed = {}
    for label, (unit, run) in units.items():
        timed = passes(scene, case, {UNIT: run} | runs, tensors)[label]
        timings = rows(scene, name, label, timed, error, clock=clock)
        for row in timings:
            row["unit"] = unit
            row["enqueue_seconds"] = enqueued(timed[row["contender"]])
            if row["enqueue_seconds"] > row["seconds"]["median"]:
                print(f"{'':27}of which Python takes {1e3 * row['enqueue_seconds']:.2f} ms")
        found["time"] += timings
    found["memory"] = memory(scene, name, timed)  # of the last pass, forward and backward
    return found


def memory(scene: CudaScene, name: str, timed: dict[str, Callable[[], None]]) -> list[dict]:
    """The peak of each contender, with the unit's beside it."""
    unit = peak(timed[UNIT])
    found = []
    for contender, run in timed.items():
        if contender != UNIT:
            own = peak(run)
            found.append(
                {"scene": scene.name, "case": name, "contender": contender}
                | own
                | {f"unit_{key}": value for key, value in unit.items()}
                | {"peak_ratio": own["peak_mib"] / unit["peak_mib"]}
            )
    return found


def left_out(scene: CudaScene, name: str, reasons: dict[str, str]) -> list[dict]:
    found = []
    for contender, reason in reasons.items():
        found.append({"scene": scene.name, "case": name, "contender": contender, "reason": reason})
        print(f"{scene.name:26} {name:26} {contender:22} left out: {reason}", flush=True)
    return found


def each(scenes: tuple[CudaScene, ...]) -> Iterator[tuple[CudaScene, str]]:
    """Every case, in the order of the scenes."""
    for scene in scenes:
        for name in scene.cases:
            yield scene, name


def measure(scenes: tuple[CudaScene, ...], out: Path, minutes: float) -> dict:
    """Measure what fits into so many minutes; `out` is written after every case."""
    end = time.monotonic() + 60 * minutes
    result: dict = {
        "machine": machine() | gpu(),
        "scenes": {one.name: asdict(one) for one in scenes},
        "time": [], "memory": [], "left_out": [],
    }  # fmt: skip
    for scene, name in each(scenes):
        if time.monotonic() > end:
            reason = f"the {minutes:g} minutes were over"
            found = {"left_out": left_out(scene, name, {"all": reason})}
        else:
            try:
                found = compare(scene, name)
                release()
            except Exception as error:  # the next case may run all the same
                found = {"left_out": left_out(scene, name, {"all": told(error)})}
        for part, more in found.items():
            result[part] += more
        save(out, result)
    return result
