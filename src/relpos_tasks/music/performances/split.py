"""Performances into train, valid and held-out, by what they hold and not by their names.

The files of a folder may be renamed or moved without changing the split. Another file changes the
part of its own copies alone, unless chance leaves a part too small. Copies always fall into the
same part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .copies import groups_of_copies
from .performance import Performance

__all__ = ["PerformanceSplit", "digest_of", "split_performances"]

_HELD_OUT = 0.9
_VALID = 0.8


@dataclass(frozen=True)
class PerformanceSplit:
    """Performances to train on, to watch while training, and to measure on at the end.

    `str(split)` is a line with the performances in each, and how long they last together.

    Args:
        train: to train on.
        valid: to watch.
        held_out: to measure on.
        as_published: which table says the part of each, and what of it is not there; None where
            what they hold decides.
    """

    train: tuple[Performance, ...]
    valid: tuple[Performance, ...]
    held_out: tuple[Performance, ...]
    as_published: str | None = None

    @property
    def parts(self) -> dict[str, tuple[Performance, ...]]:
        """The performances by the name of their part."""
        return {"train": self.train, "valid": self.valid, "held out": self.held_out}

    def __str__(self) -> str:
        parts = "; ".join(
            f"{name} {len(performances):,} performances, {_length(performances)}"
            for name, performances in self.parts.items()
        )
        return parts if self.as_published is None else f"{parts}; {self.as_published}"


def split_performances(performances: Sequence[Performance]) -> PerformanceSplit:
    """About 80 % of the performances to train, 10 % valid, 10 % held out.

    Args:
        performances: any.

    Returns:
        The split, each part sorted by name. Where chance leaves a part less than half of its share
        of the groups of copies, or none, it gets those that come closest to it.

    Raises:
        ValueError: if there are fewer than three groups of copies.
    """
    groups = [
        [performances[index] for index in indices] for indices in groups_of_copies(performances)
    ]
    if len(groups) < 3:
        copies = len(performances) - len(groups)
        raise ValueError(
            "must hold at least three different performances with notes, one for each part, got "
            f"{len(groups)}" + (f" and {copies} copies" if copies else "")
        )
    numbers = {id(group): _fraction_of(group) for group in groups}
    groups.sort(key=lambda group: numbers[id(group)], reverse=True)
    least = max(1, round(len(groups) * (1 - _HELD_OUT) / 2))
    held_out = sum(number >= _HELD_OUT for number in numbers.values())
    held_out = min(max(held_out, least), len(groups) - 2)
    watched = sum(number >= _VALID for number in numbers.values())
    watched = min(max(watched, held_out + least), len(groups) - 1)
    return PerformanceSplit(
        _sorted(groups[watched:]), _sorted(groups[held_out:watched]), _sorted(groups[:held_out])
    )


def digest_of(performance: Performance) -> bytes:
    """A few bytes that depend on the notes alone, not on the name.

    Args:
        performance: any.
    """
    digest = hashlib.blake2b(digest_size=8)
    for column in ("starts", "ends", "pitches", "velocities"):
        digest.update(getattr(performance, column).tobytes())
    return digest.digest()


def _fraction_of(group: Iterable[Performance]) -> float:
    """A number in [0, 1) that depends on the notes of the group alone."""
    first = min(digest_of(performance) for performance in group)
    return int.from_bytes(first[:7], "big") / 2**56


def _sorted(groups: Iterable[Iterable[Performance]]) -> tuple[Performance, ...]:
    return tuple(sorted((one for group in groups for one in group), key=lambda one: one.name))


def _length(performances: Iterable[Performance]) -> str:
    seconds = sum(performance.seconds for performance in performances)
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
