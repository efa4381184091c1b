"""What is asked of x-transformers' own classes, whose versions change from week to week."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["ATTEND_LIBRARY", "LIBRARY", "has", "is_not"]

#: Where its layers are.
LIBRARY = "x_transformers.x_transformers"
#: Where what attends is.
ATTEND_LIBRARY = "x_transformers.attend"


def has(module: Any, name: str) -> bool:
    """Whether a module has something of this name, or says yes; older ones may not know it.

    Args:
        module: of any class.
        name: of the attribute.
    """
    found = getattr(module, name, None)
    return found is not None and found is not False


def is_not(cls: type, name: str, library: str) -> str | None:
    """Why a module's forward is not that of the library's class of this name; None if it is.

    Args:
        cls: of the module.
        name: of the library's class.
        library: the module that defines that.
    """
    if (cls.__module__, cls.__qualname__) != (library, name):
        return f"a subclass of {name}, which may compute something else"
    found = inspect.unwrap(vars(cls)["forward"]).__module__
    return None if found == library else f"{name}.forward was replaced by one of {found}"
