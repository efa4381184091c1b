"""The errors that relpos raises, and one that it tells from others."""

from __future__ import annotations

import torch

__all__ = ["BackendError", "ShapeError", "is_out_of_memory"]

# Of allocators of torch, of CUDA and its libraries, and of C++.
_WANT_OF_MEMORY = (
    "allocate memory", "not enough memory", "out of memory", "tried to allocate", "alloc_failed",
    "bad_alloc",
)  # fmt: skip


class ShapeError(ValueError):
    """A tensor argument has the wrong shape, layout, dtype or device."""


class BackendError(RuntimeError):
    """A backend cannot do what was asked of it, or not on this machine."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, in Python's way or in torch's.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    >>> is_out_of_memory(RuntimeError("ncclSystemError: System call (socket, malloc) failed"))
    False
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(each in words for each in _WANT_OF_MEMORY)
