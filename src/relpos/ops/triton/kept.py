"""Small tensors of integers that many calls want alike: made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

__all__ = ["kept"]

_MOST = 256  # sets of arguments whose results are kept

P = ParamSpec("P")
T = TypeVar("T")


def kept(make: Callable[P, T]) -> Callable[P, T]:
    """`make` of arguments that can be hashed, the last one a device; nobody writes to its results.

    What is made while a CUDA graph is captured is there only when the graph runs, and not kept.
    """

    @lru_cache(_MOST)
    def find(*given: Any) -> Any:
        found = make(*given)  # type: ignore[call-arg]
        if given[-1].type == "cuda":  # other streams will read it
            torch.cuda.current_stream(given[-1]).synchronize()
        return found

    @wraps(make)
    def found_or_made(*given: Any) -> Any:
        if given[-1].type == "cuda" and torch.cuda.is_current_stream_capturing():
            return make(*given)  # type: ignore[call-arg]
        return find(*given)

    return found_or_made  # type: ignore[return-value]
