"""Checks of modules."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["check_module"]


def check_module(function: str, argument: str, value: Any) -> None:
    """Raise unless `value` is a module.

    Args:
        function: the public function or class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        value: the argument.

    Raises:
        TypeError: if it is none.

    >>> check_module("adapt", "model", "t5-base")
    Traceback (most recent call last):
    TypeError: adapt: model must be an nn.Module, got str
    """
    if not isinstance(value, nn.Module):
        raise TypeError(f"{function}: {argument} must be an nn.Module, got {type(value).__name__}")
