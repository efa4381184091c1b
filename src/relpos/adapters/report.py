"""What `adapt` did to a model, as lists and as a table to read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Which modules were given relpos's attention, which were left as they are, and why.

    Args:
        adapted: `(module name, scheme)` of each module that now runs on `relpos.attention`;
            cross-attention without positions among them, where it is of the same class.
        left: `(module name, reason)` of each module that looks like relative attention and was not
            touched.

    >>> layers = [(f"encoder.layers.{n}.self_attn", "Transformer-XL") for n in range(24)]
    >>> print(Report(layers, [("decoder.attn", "offsets from data")]))
    adapted: 24
      encoder.layers.{0..23}.self_attn  24  Transformer-XL
    left as they were: 1
      decoder.attn  1  offsets from data
    """

    adapted: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [
            *_section("adapted", self.adapted),
            *_section("left as they were", self.left),
        ]
        return "\n".join(parts)

    def __bool__(self) -> bool:
        """Whether anything was adapted."""
        return bool(self.adapted)


def _section(title: str, entries: list[tuple[str, str]]) -> list[str]:
    rows = grouped(entries)
    width = max((len(name) for name, _, _ in rows), default=0)
    digits = max((len(str(count)) for _, count, _ in rows), default=0)
    lines = [f"  {name:{width}}  {count:{digits}}  {what}" for name, count, what in rows]
    return [f"{title}: {len(entries)}", *lines]


def grouped(entries: list[tuple[str, str]]) -> list[tuple[str, int, str]]:
    """Entries that differ in one layer's number alone as one row: `(name, count, what)`.

    >>> grouped([("layer.0.a", "x"), ("layer.1.a", "x"), ("layer.1.b", "y")])
    [('layer.{0..1}.a', 2, 'x'), ('layer.1.b', 1, 'y')]
    """
    groups: dict[tuple[str, str], list[list[int]]] = {}
    for name, what in entries:
        numbers = [int(number) for number in re.findall(r"(?<=\.)\d+(?=\.|$)", f".{name}")]
        pattern = re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", f".{name}")[1:]
        groups.setdefault((pattern, what), []).append(numbers)
    return [
        (pattern.format(*map(_range, zip(*numbers, strict=True))), len(numbers), what)
        for (pattern, what), numbers in groups.items()
    ]


def _range(numbers: tuple[int, ...]) -> str:
    """`3` for one number, `{0..23}` for a run, `{0,2}` for others."""
    found = sorted(set(numbers))
    if len(found) == 1:
        return str(found[0])
    if found == list(range(found[0], found[-1] + 1)):
        return f"{{{found[0]}..{found[-1]}}}"
    return "{" + ",".join(map(str, found)) + "}"
