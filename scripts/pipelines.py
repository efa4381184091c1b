"""Loops of a compiled kernel in which a copy overwrites what a product still reads.

Triton's pipeline copies tiles of the next turns into shared memory while the products of this one
run (`async_copy`, `warp_group_dot`), and gives each tile as many buffers as turns it is copied
ahead, and one more where a product of the turn before may not be over. A tile that is wanted in
registers besides does not get that one, in Triton 3.6 and 3.8 at least: its next copy races with
the product. That is so of products as an H100 has them; on others before it none runs on.

Seen in Triton's last form of a kernel before machine code, `asm["ttgir"]`:

    %k = ttg.local_alloc : () -> !ttg.memdesc<2x64x64xbf16, ...>          two buffers
    %9 = scf.for ... {
      %20 = ttg.memdesc_index %k[...]
      %21 = ttng.warp_group_dot %p, %20, ... {isAsync = true}
      %22 = ttg.async_copy_global_to_local %source, %20
    }
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Overwritten", "overwritten"]

_FOR = re.compile(r"(^|= )scf\.for ")
_BUFFERS = re.compile(r"(%[\w#]+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x")
_TILE = re.compile(r"(%[\w#]+) = ttg\.local_alloc ")
_VIEW = re.compile(r"(%[\w#]+) = ttg\.memdesc_\w+ (%[\w#]+)")
_COPY = re.compile(r"async_copy_global_to_local %[\w#]+, (%[\w#]+)")
_PRODUCT = re.compile(r"= ttng\.warp_group_dot (%[\w#]+), (%[\w#]+)")
_WAIT = re.compile(r"warp_group_dot_wait .*pendings = (\d+)")


class Overwritten(NamedTuple):
    """A tile that is copied too early; lines are numbered from 1.

    Args:
        loop: line where it begins.
        tile: line where its buffers are allocated.
        buffers: that it has.
        ahead: turns that it is copied ahead.
    """

    loop: int
    tile: int
    buffers: int
    ahead: int


@dataclass(frozen=True)
class _Event:
    """A line that copies to buffers or multiplies from them, or waits for products.

    Args:
        line: its number.
        kind: "copy", "product" or "wait".
        of: the line of the buffers' allocation, None for others; of "wait" how many products may
            still run.
    """

    line: int
    kind: str
    of: int | None


def overwritten(ttgir: str) -> list[Overwritten]:
    """What is overwritten in the inner loops of a kernel; none if all is well."""
    buffers, events, loops = _read(ttgir.splitlines())
    found = []
    for begin, end in loops:
        inside = [event for event in events if begin < event.line < end]
        for tile, count in buffers.items():
            copies = [x.line for x in inside if x.kind == "copy" and x.of == tile]
            products = [x.line for x in inside if x.kind == "product" and x.of == tile]
            if not (copies and products):
                continue
            ahead = sum(x.kind == "copy" and x.of == tile and x.line < begin for x in events)
            last, copy = max(products), min(copies)
            # What this turn is still to read, and what the product of the one before may read.
            needed = ahead + (last > copy) + (not _is_over(last, copy, inside))
            if count < needed:
                found.append(Overwritten(begin, tile, count, ahead))
    return found


def _is_over(product: int, copy: int, inside: list[_Event]) -> bool:
    """Whether a product has been waited for before the next copy, in this turn or the next one."""
    between = [x for x in inside if product < x.line and (product > copy or x.line < copy)]
    if product > copy:
        between += [x for x in inside if x.line < copy]
    since: set[int] = set()
    for event in between:
        if event.kind == "product":
            since.add(event.line)
        elif event.kind == "wait" and event.of is not None and event.of <= len(since):
            return True
    return False


def _read(lines: list[str]) -> tuple[dict[int, int], list[_Event], list[tuple[int, int]]]:
    """How many buffers each allocation has, by its line; events; inner loops, by first and last.

    A name may stand for something else in another loop, so that lines are read in their order.
    """
    buffers: dict[int, int] = {}
    allocation: dict[str, int | None] = {}
    events: list[_Event] = []
    begun: list[tuple[int, int]] = []
    loops: list[tuple[int, int]] = []
    for number, line in enumerate(lines, 1):
        indent = len(line) - len(line.lstrip())
        if _FOR.search(line.strip()):
            begun.append((number, indent))
        elif begun and line.strip().startswith("}") and indent == begun[-1][1]:
            loops.append((begun.pop()[0], number))
        if found := _BUFFERS.search(line):
            allocation[found[1]], buffers[number] = number, int(found[2])
        elif found := _TILE.search(line):
            allocation[found[1]] = None
        elif found := _VIEW.search(line):
            allocation[found[1]] = allocation.get(found[2])
        elif found := _COPY.search(line):
            events.append(_Event(number, "copy", allocation.get(found[1])))
        elif found := _PRODUCT.search(line):
            events += [_Event(number, "product", allocation.get(x)) for x in found.groups()]
        elif found := _WAIT.search(line):
            events.append(_Event(number, "wait", int(found[1])))
    inner = [(a, b) for a, b in loops if not any(a < c and d < b for c, d in loops)]
    return buffers, events, inner
