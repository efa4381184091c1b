"""On what a result was made."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

__all__ = ["machine", "memory_bytes", "processor", "status_mib", "versions"]

# What the results of a task may depend on.
_PACKAGES = (
    "relpos",
    "torch",
    "lightning",
    "numpy",
    "music21",
    "verovio",
    "symusic",
    "sacrebleu",
    "tokenizers",
    "scikit-learn",
)


def machine(*, precision: str | None = None) -> dict[str, str]:
    """The processor with its instruction set, the accelerator if there is one, and the versions.

    Args:
        precision: of the training, as Lightning names it; None where nothing was trained.
    """
    record = {
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": f"{os.cpu_count()} ({torch.get_num_threads()} used)",
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        record["accelerator"] = torch.cuda.get_device_name()
    if precision is not None:
        record["precision"] = precision
    return record | versions()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def memory_bytes() -> int:
    """The memory that a model can have at most: this process's, or that of all GPUs if it is more.

    Returns:
        Bytes.
    """
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    with suppress(OSError, ValueError):
        # A container may have less than the machine.
        host = min(host, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    devices = range(torch.cuda.device_count())
    gpus = sum(torch.cuda.get_device_properties(n).total_memory for n in devices)
    # What cannot be found out bounds nothing.
    return max(host, gpus) or 2**63


def status_mib(field: str) -> float:
    """What the system says of this process's memory (Linux).

    Not `getrusage`: what that calls the largest is inherited from the parent process.

    Args:
        field: `VmRSS`, the resident set now, or `VmHWM`, the largest so far.

    Returns:
        MiB.

    Raises:
        OSError: if the system does not say it.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"status_mib: /proc/self/status must have {field}, got none")


def processor() -> str:
    """The processor's name, as the system has it."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
