"""On what a result was made."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from .training.checkpoint import versions

__all__ = ["machine"]


def machine() -> dict[str, str]:
    """The processor, the accelerator if there is one, and the versions."""
    record = {
        "processor": _processor(),
        "cores": f"{os.cpu_count()} ({torch.get_num_threads()} used)",
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        record["accelerator"] = torch.cuda.get_device_name()
    return record | versions()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
