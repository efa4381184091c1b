"""On what a figure was measured.

python -m benchmarks.measure.machine    # on a machine with a GPU: its facts as JSON and in words
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

from relpos_tasks.machine import processor

__all__ = ["commit", "gpu", "machine", "note_machine"]


def machine() -> dict[str, str | int]:
    """Processor, threads, versions, and the commit that was measured."""
    return {
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(),
    }


def gpu() -> dict[str, str | float]:
    """The first CUDA device, its driver, and what runs kernels on it."""
    import triton

    device = torch.cuda.get_device_properties(0)
    return {
        "gpu": device.name,
        "gpu_gib": round(device.total_memory / 2**30, 1),
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        or "unknown",
        "cuda": torch.version.cuda or "none",
        "triton": triton.__version__,
    }


def commit() -> str:
    """What `RELPOS_COMMIT` says, in a copy whose git does not know it, or as git describes it.

    It is "dirty" where anything else differs than results, which a run writes itself.
    """
    if given := os.environ.get("RELPOS_COMMIT"):
        return given
    described = _first_line("git", "describe", "--always")
    if not described:
        return "unknown"
    changed = _first_line("git", "diff", "--name-only", "HEAD", "--",
                          ":/", ":(top,exclude)benchmarks/results")  # fmt: skip
    return f"{described}-dirty" if changed else described


def _first_line(*command: str) -> str:
    """The first line that a command prints; empty where it prints none or is missing."""
    if shutil.which(command[0]) is None:
        return ""
    ran = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return ran.stdout.partition("\n")[0].strip()


def note_machine(result: dict, name: str) -> None:
    """Write down of which commit, and on which processor, what has this name was measured."""
    here = machine()
    result.setdefault("commits", {})[name] = here["commit"]
    processors = result.setdefault("processors", {})
    processors[name] = {key: here[key] for key in ("processor", "capability")}


if __name__ == "__main__":
    facts = machine() | gpu()
    print(json.dumps(facts))
    print("{gpu}, driver {driver}, torch {torch}, Triton {triton}, {commit}".format(**facts))
