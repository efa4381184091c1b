"""Adapted models that are something else while they are called, unnoticed by others beside them."""

from __future__ import annotations

import threading
from typing import Any

from .adapted import Adapted

__all__ = ["AtWork", "some_at_work"]

# By their identities, the models whose forward this thread is in: others may be in another's.
_of_thread = threading.local()


class AtWork(Adapted):
    """A base for models that are asked, during their forward, whether it is that."""

    @property
    def is_at_work(self) -> bool:
        """Whether this thread is in this model's forward."""
        return id(self) in getattr(_of_thread, "models", ())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's, during which `is_at_work`."""
        before = getattr(_of_thread, "models", ())
        _of_thread.models = (*before, id(self))
        try:
            return super().forward(*args, **kwargs)
        finally:
            _of_thread.models = before


def some_at_work() -> bool:
    """Whether this thread is in the forward of such a model."""
    return bool(getattr(_of_thread, "models", ()))
