"""The argument by which models of transformers are given a cache, under either of its names.

It is `cache` from transformers 5.24 on and was `past_key_values` before; adaptations say `cache`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

__all__ = ["cache_name", "same_parameters", "takes_cache"]

_BEFORE, _NOW = "past_key_values", "cache"


def takes_cache(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method with a parameter `cache` that takes it as `past_key_values`, too.

    Given both, it takes `cache`, as transformers does.

    Args:
        method: of an adaptation.
    """

    @wraps(method)
    def with_either_name(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _BEFORE in kwargs:
            kwargs.setdefault(_NOW, kwargs.pop(_BEFORE))
        return method(self, *args, **kwargs)

    return with_either_name


def same_parameters(found: Iterable[str], expected: Iterable[str]) -> bool:
    """Whether the names of a method's parameters are those expected, but for that of a cache.

    Args:
        found: in any version of transformers.
        expected: with either name.

    >>> same_parameters(["x", "past_key_values"], ["x", "cache"])
    True
    """
    now, then = (
        [_NOW if name == _BEFORE else name for name in names] for names in (found, expected)
    )
    return now == then


def cache_name(function: Callable[..., Any]) -> str:
    """What a function calls the cache that it takes.

    Args:
        function: of any version of transformers.

    >>> cache_name(lambda x, past_key_values=None: x)
    'past_key_values'
    """
    return _NOW if _NOW in inspect.signature(function).parameters else _BEFORE
