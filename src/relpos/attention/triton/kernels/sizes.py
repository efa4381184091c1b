"""A call inside a kernel: what the kernel is compiled for, and sizes for which it is not."""

from typing import Any, NamedTuple

# The arguments for whose value no kernel is compiled: the fields of `call.Sizes`.
SIZES = ("length", "key_length", "start", "window_first", "window_rows", "all_tiles")


class SizedCall(NamedTuple):
    """`given` is a `call.Call`; the others are the fields of `call.Sizes`, in their order."""

    given: Any
    length: Any
    key_length: Any
    start: Any
    first: Any
    rows: Any
    tiles: Any
