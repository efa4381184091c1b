"""The argument by which models of transformers are given a cache, under either of its names.

It is `cache` from transformers 5.24 on and was `past_key_values` before; adaptations say `cache`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["cache_name", "parameters", "takes_cache"]

_BEFORE, _NOW = "past_key_values", "cache"


def takes_cache(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method with a parameter `cache` that takes it as `past_key_values`, too.

    Args:
        method: of an adaptation.
    """

    @wraps(method)
    def with_either_name(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _BEFORE in kwargs:
            kwargs.setdefault(_NOW, kwargs.pop(_BEFORE))
        return method(self, *args, **kwargs)

    return with_either_name


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters, that of a cache as it is now.

    Args:
        function: of any version of transformers.

    >>> parameters(lambda x, past_key_values=None: x)
    ('x', 'cache')
    """
    names = inspect.signature(function).parameters
    return tuple(_NOW if name == _BEFORE else name for name in names)


def cache_name(function: Callable[..., Any]) -> str:
    """What a function calls the cache that it takes.

    Args:
        function: of any version of transformers.

    >>> cache_name(lambda x, past_key_values=None: x)
    'past_key_values'
    """
    return _NOW if _NOW in inspect.signature(function).parameters else _BEFORE
