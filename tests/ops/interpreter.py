"""Triton's interpreter without what it does again and again.

It types each number and block as the compiler does, operation by operation, which takes far longer
than to compute them. What it finds is the same for all of one shape and dtype, and is kept here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

__all__ = ["KNOWN", "make_quick"]

#: The Triton whose interpreter is known; with another one nothing is replaced.
KNOWN = "3.8."


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Spare the interpreter most of its time, where kernels are interpreted by a known one.

    Args:
        patch: undoes it.
    """
    version = import_module("triton").__version__
    if os.environ.get("TRITON_INTERPRET") != "1" or not version.startswith(KNOWN):
        return
    interpreter = import_module("triton.runtime.interpreter")
    core = import_module("triton.language.core")
    _replace_the_language_once(patch, interpreter, core)
    _check_no_overflow_in_vain(patch, interpreter)
    _keep_types(patch, interpreter, core)


def _replace_the_language_once(patch: pytest.MonkeyPatch, interpreter: Any, core: Any) -> None:
    """A launch replaces the functions of `triton.language` by its own and restores them at its end.

    Every call of a device function replaces them again, though nothing has restored them meanwhile.
    """
    language = (import_module("triton.language"), core)
    replace_all, scope = interpreter._patch_lang, interpreter._LangPatchScope
    seen: dict[int, list[Any]] = {}

    def replace_what_is_not(function: Callable[..., Any]) -> Any:
        names = function.__globals__
        modules = seen.get(id(names))
        if modules is None:
            modules = [x for x in names.values() if inspect.ismodule(x) and x in language]
        if modules:  # the interpreter adds some where there are none
            seen[id(names)] = modules
        if modules and not any(core.is_builtin(module.load) for module in modules):
            return scope()
        return replace_all(function)

    patch.setattr(interpreter, "_patch_lang", replace_what_is_not)


def _check_no_overflow_in_vain(patch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """It computes all sums of integers in 64 bits too, and says nothing unless it is to debug."""
    options = interpreter.interpreter_builder.options
    if not options.debug:
        quiet = replace(options, sanitize_overflow=False)
        patch.setattr(interpreter.interpreter_builder, "options", quiet)


def _keep_types(patch: pytest.MonkeyPatch, interpreter: Any, core: Any) -> None:
    """Types of blocks, and shapes of tensors, are made once each."""
    constexpr, block_type = core.constexpr, core.block_type
    semantic = type(interpreter.interpreter_semantic)
    make_block_type, unwrap = block_type.__init__, core._unwrap_if_constexpr
    numpy_dtype, are_equal = interpreter._get_np_dtype, core.dtype.__eq__
    make_tensor, make_compatible = core.tensor.__init__, semantic.broadcast_impl_value
    blocks: dict[Any, tuple[Any, int, str]] = {}
    block_shapes: dict[Any, Any] = {}
    shapes: dict[Any, tuple[Any, Any]] = {}
    dtypes: dict[str, Any] = {}

    def quick_unwrap(x: Any) -> Any:
        kind = type(x)
        if kind is constexpr:
            return x.value
        return x if kind is int or kind is core.tensor or x is None else unwrap(x)

    def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(map(quick_unwrap, shape))
        key = element_ty.name, sizes
        found = blocks.get(key)
        if found is None:
            make_block_type(self, element_ty, shape)
            self.shape = block_shapes.setdefault(sizes, self.shape)
            blocks[key] = self.shape, self.numel, self.name
        else:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = found

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle = handle
        self.type = type
        self.dtype = type.scalar
        shape = tuple(type.shape.values) if type.is_block() else ()
        found = shapes.get(shape)
        if found is None:
            make_tensor(self, handle, type)
            shapes[shape] = self.shape, self.numel
        else:
            self.shape, self.numel = found

    def quick_numpy_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        found = dtypes.get(name)
        if found is None:
            found = dtypes[name] = numpy_dtype(dtype)
        return found

    def quick_make_compatible(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        shape, other = (getattr(x.type, "shape", None) for x in (lhs, rhs))
        return (lhs, rhs) if shape is other else make_compatible(self, lhs, rhs)

    patch.setattr(core, "_unwrap_if_constexpr", quick_unwrap)
    patch.setattr(semantic, "broadcast_impl_value", quick_make_compatible)
    patch.setattr(block_type, "__init__", init_block_type)
    patch.setattr(core.tensor, "__init__", init_tensor)
    patch.setattr(interpreter, "_get_np_dtype", quick_numpy_dtype)
    patch.setattr(core.dtype, "__eq__", lambda self, other: self is other or are_equal(self, other))
