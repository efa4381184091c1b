"""Runs on the CPU, thread for thread, what Triton compiled for a GPU."""

from .errors import AccessError, EmulationError, HazardError, UnsupportedError
from .launch import compiled, emulated, run_kernel
from .machine import Mode

__all__ = [
    "AccessError",
    "EmulationError",
    "HazardError",
    "Mode",
    "UnsupportedError",
    "compiled",
    "emulated",
    "run_kernel",
]
