"""Triton's interpreter without what it does again and again."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest


def patch_the_language_once(patch: pytest.MonkeyPatch) -> None:
    """Spare the interpreter nearly half of its time, if it is the one that is known to waste it.

    A launch replaces the functions of `triton.language` by its own and restores them at its end.
    Every call of a device function replaces them again, though nothing has restored them meanwhile.

    Args:
        patch: undoes it.
    """
    interpreter = import_module("triton.runtime.interpreter")
    core = import_module("triton.language.core")
    replace_all = getattr(interpreter, "_patch_lang", None)
    scope = getattr(interpreter, "_LangPatchScope", None)
    if replace_all is None or scope is None or not hasattr(core, "is_builtin"):
        return
    language = (import_module("triton.language"), core)

    def replace_what_is_not(function):
        seen = [x for x in function.__globals__.values() if inspect.ismodule(x) and x in language]
        if seen and not any(core.is_builtin(module.load) for module in seen):
            return scope()
        return replace_all(function)

    patch.setattr(interpreter, "_patch_lang", replace_what_is_not)
