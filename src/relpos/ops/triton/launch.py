"""Running a kernel: the largest tiles that fit, and a program for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton import OutOfResources

from .kernel_args import Specialization
from .prepared_call import PreparedCall
from .tuning import TileShape, tile_shapes

__all__ = ["run_largest_that_fits", "run_programs", "run_tiles"]


def run_programs(
    kernel: Any,
    programs: int,
    *arguments: Any,
    shape: TileShape,
    compiled: dict[str, Any] | None = None,
    **constants: Any,
) -> None:
    """Run `programs` of a kernel on the current stream.

    Args:
        kernel: one of `kernels`.
        programs: of it.
        *arguments: in its order.
        shape: of its tiles.
        compiled: by a kernel's name what a launch before has found compiled, for launches that
            differ in numbers alone, which the kernel is not compiled for; None: look for it.
        **constants: its last arguments, by name.
    """
    name = kernel.__name__
    found = None if compiled is None else compiled.get(name)
    if found is not None:
        last = kernel.arg_names[len(arguments) :]
        found[programs, 1, 1](*arguments, *(constants[name] for name in last))
        return
    found = kernel[(programs,)](*arguments, **constants, **shape.options)
    if compiled is not None:
        compiled[name] = found  # None in the interpreter


def run_tiles(
    kernel: Any,
    call: PreparedCall,
    num_tiles: int,
    *arguments: Any,
    shape: TileShape,
    spec: Specialization,
    splits: int = 1,
    **constants: Any,
) -> None:
    """Run a kernel over `num_tiles` tiles, with the call's tensors before `arguments`.

    Each tile has as many programs as there are `splits`.
    """
    args = call.kernel_args(spec, num_tiles)
    programs = num_tiles * splits
    run_programs(kernel, programs, *args, *arguments, SPEC=spec, **constants, shape=shape)


def run_largest_that_fits(
    kernel: str, call: PreparedCall, run: Callable[[TileShape], None]
) -> None:
    """`run` with the largest tiles for which the device has memory enough on its processors."""
    *larger, smallest = tile_shapes(kernel, call)
    with torch.cuda.device_of(call.q):
        for shape in larger:
            try:
                return run(shape)
            except OutOfResources:
                pass  # what ran, if anything, is made anew
        run(smallest)
