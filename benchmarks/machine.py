"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

__all__ = ["machine"]


def machine() -> dict[str, str | int]:
    """Processor, threads, versions, and the commit that was measured."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "processor": name,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit or "unknown",
    }
