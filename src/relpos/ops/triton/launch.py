"""Running a kernel: the largest tiles that fit, and a program for each of them.

Triton looks at every argument to find out for what a kernel is to be compiled, which takes longer
than to launch it. So a launch says what decides that, and what it has found is kept; that it does
not fit, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from triton import OutOfResources

from ...errors import BackendError
from ..bounded_cache import BoundedCache
from .call_plan import CallPlan
from .kernel_args import Specialization
from .recorded import active_recorder
from .tuning import TiledCall, TileShape, tile_shapes

__all__ = ["LaunchedCall", "key_of", "run_largest_that_fits", "run_programs", "run_tiles"]

_found: BoundedCache[Any] = BoundedCache()
_fitting: BoundedCache[TileShape] = BoundedCache()  # of several kernels


@runtime_checkable
class LaunchedCall(TiledCall, Protocol):
    """What kernels are given of a call, as `PreparedCall` has it."""

    plan: CallPlan

    def kernel_args(self, specialization: Specialization, num_tiles: int) -> tuple[Any, ...]:
        """`KernelInputs` and `KernelSizes`."""
        ...


class _NoRoom(NamedTuple):
    """The arguments of an `OutOfResources`, which itself would hold the tensors of its call."""

    required: int
    limit: int
    name: str


def run_programs(
    kernel: Any,
    programs: int,
    *arguments: Any,
    shape: TileShape,
    known: Hashable = None,
    **constants: Any,
) -> None:
    """Run `programs` of a kernel on the current stream.

    Args:
        kernel: one of `kernels`.
        programs: of it.
        *arguments: in its order.
        shape: of its tiles.
        known: what decides for what the kernel is compiled, with its tile and its last arguments:
            launches for which all of these are equal may differ in addresses, in numbers that the
            kernel is not compiled for, and in nothing else. None: look at all arguments.
        **constants: its last arguments, by name.
    """
    recorder = active_recorder()
    if recorder is None:
        _run(kernel, programs, arguments, constants, shape, known)
        return
    with recorder.launching():
        found = _run(kernel, programs, arguments, constants, shape, known)
    last = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
    recorder.launched(_launcher(kernel, programs, shape, found), arguments + last)


def _run(
    kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any],
    shape: TileShape, known: Hashable,
) -> Any:  # fmt: skip
    """Run it; what is launched, or None in the interpreter."""
    key = None if known is None else key_of(kernel, shape, known, constants)
    found = None if key is None else _found.get(key)
    if isinstance(found, _NoRoom):
        raise OutOfResources(*found)
    if found is not None:
        last = kernel.arg_names[len(arguments) :]
        found[programs, 1, 1](*arguments, *(constants[name] for name in last))
        return found
    try:
        found = kernel[(programs,)](*arguments, **constants, **shape.options)
    except OutOfResources as error:
        if key is not None:
            _found.put(key, _NoRoom(error.required, error.limit, error.name))
        raise
    if key is not None and found is not None:  # as in the interpreter
        _found.put(key, found)
    return found


def _launcher(kernel: Any, programs: int, shape: TileShape, found: Any) -> Callable[..., Any]:
    """Launches what was found, with all of the kernel's arguments."""
    if found is None:
        return partial(kernel[(programs,)], **shape.options)
    return found[programs, 1, 1]


def key_of(
    kernel: Any, shape: TileShape, known: Hashable, constants: dict[str, Any]
) -> tuple[Hashable, ...]:
    """By which what a launch has found is kept."""
    return kernel.__name__, shape, known, *constants.items()


def run_tiles(
    kernel: Any,
    call: LaunchedCall,
    num_tiles: int,
    *arguments: Any,
    shape: TileShape,
    spec: Specialization,
    splits: int = 1,
    known: Hashable = None,
    **constants: Any,
) -> None:
    """Run a kernel over `num_tiles` tiles, with the call's tensors before `arguments`.

    Each tile has as many programs as there are `splits`. What else decides for what the kernel is
    compiled than the call and numbers among `arguments` is `known`.
    """
    args = call.kernel_args(spec, num_tiles)
    numbers = (x for x in arguments if type(x) is int)
    run_programs(
        kernel, num_tiles * splits, *args, *arguments, SPEC=spec, **constants, shape=shape,
        known=(call.plan.known, known, *numbers),
    )  # fmt: skip


def run_largest_that_fits(
    kernel: str, call: LaunchedCall, run: Callable[[TileShape], None], *, known: Hashable = None
) -> None:
    """`run` with the largest tiles for which the device has memory enough on its processors.

    Args:
        kernel: as in `tile_shapes`.
        call: whose tensors it gets.
        run: launches it, or several one after another, of which a later one may be what does not
            fit: then all are made anew with the next tiles.
        known: what decides for what they are compiled, besides the call: so that of several none
            runs in vain again. None: they are one.

    Raises:
        BackendError: if the device has not memory enough for the smallest ones.
    """
    shapes = tile_shapes(kernel, call)
    key = None
    if known is not None:
        key = kernel, *shapes, call.plan.known, call.traits, call.precision, known
    before = None if key is None else _fitting.get(key)
    first = shapes.index(before) if before in shapes else 0
    with torch.cuda.device_of(call.q):
        for shape in shapes[first:]:
            try:
                run(shape)
            except OutOfResources as error:
                reason = error
                continue
            if key is not None and shape != before:
                _fitting.put(key, shape)
            return
    q, wide = call.q, max(call.widths)
    raise BackendError(
        f"attention: backend='triton' cannot run these inputs: the smallest tile of heads {wide} "
        f"wide in {q.dtype}, with these terms, must have at most {reason.limit} bytes on this GPU, "
        f"got {reason.required}; backend='tiled' has no limit"
    ) from None
