"""Whether tensors have their memory: kernels read it by address, and torch does not always look."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ..errors import BackendError

__all__ = ["check_memory"]


def check_memory(backend: str, tensors: Iterable[Tensor | None]) -> None:
    """Raise for a tensor that has numbers and no memory.

    Args:
        backend: that is called.
        tensors: that it reads.

    Raises:
        BackendError: if the memory of one was freed, as FSDP frees a module's parameters.
    """
    for x in tensors:
        if x is not None and not x.untyped_storage().nbytes() and x.numel():
            raise BackendError(
                f"attention: {backend}: every table must have its memory, got one of "
                f"{tuple(x.shape)} whose memory was freed (FSDP frees parameters after their "
                "module's call: wrap the layer, not its position)"
            )
