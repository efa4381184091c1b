"""The errors that relpos raises, and one that it tells from others."""

from __future__ import annotations

__all__ = ["BackendError", "ShapeError", "is_out_of_memory"]


class ShapeError(ValueError):
    """A tensor argument has the wrong shape, layout, dtype or device."""


class BackendError(RuntimeError):
    """A backend cannot do what was asked of it, or not on this machine."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, in Python's way or in torch's.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    told = isinstance(error, RuntimeError) and "alloc" in str(error).lower()
    return told or isinstance(error, MemoryError)
