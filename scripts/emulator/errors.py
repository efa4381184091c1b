"""What goes wrong in an emulated kernel."""

from __future__ import annotations

__all__ = ["AccessError", "EmulationError", "HazardError", "UnsupportedError"]


class EmulationError(RuntimeError):
    """A kernel that cannot go on, with its name and instruction."""


class AccessError(EmulationError):
    """An address outside of what the kernel was given, or not aligned."""


class HazardError(EmulationError):
    """Memory that two threads use of which one writes, and nothing orders them."""


class UnsupportedError(EmulationError):
    """An instruction that the emulator does not know."""
