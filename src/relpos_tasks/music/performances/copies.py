"""Which files hold the same music: copies under other names, transposed, slower, or in part.

Two performances are copies when a third of the runs of one (eight notes in the order in which they
are struck, by the intervals between them) stand in the other too; or a third of those that are made
from each chord's notes from below. So it matters neither in which key nor how fast a copy is, how
its notes are held, how its chords are spread, or what stands before and after. Two pianists who
play the same notes are copies by this rule where they strike those of a chord together; where they
arpeggiate or ornament, often not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from .performance import Performance

__all__ = ["SHARED", "groups_of_copies"]

SHARED = 1 / 3
_INTERVALS = 7
# Steps of 10 ms: a note that is struck so soon after another one belongs to the same chord. In what
# order the notes of a chord are struck changes with a copy's tempo, by rounding to steps alone.
# Where notes are fast, so does what belongs to a chord, and their order is what stays.
_SPREADS = (0, 4)
# A run is looked for in so many files behind the first that has it: copies share many runs.
_FILES_OF_A_RUN = 16
# No interval: in place of those that a performance of fewer notes has not.
_NOTHING = 255


def groups_of_copies(performances: Sequence[Performance]) -> list[list[int]]:
    """The performances in groups of copies, most of them alone.

    Args:
        performances: any.

    Returns:
        Their indices, each in one group, in rising order.
    """
    leader = list(range(len(performances)))
    for spread in _SPREADS:
        runs = [_runs(performance, spread) for performance in performances]
        for one, other, shared in _shared(runs):
            if shared >= SHARED * min(len(runs[one]), len(runs[other])):
                old, new = sorted((leader[one], leader[other]))
                leader = [old if first == new else first for first in leader]
    groups: dict[int, list[int]] = {}
    for index, first in enumerate(leader):
        groups.setdefault(first, []).append(index)
    return list(groups.values())


def _runs(performance: Performance, spread: int) -> Int64[ndarray, "runs"]:
    """The different runs of a performance, each as one number: a byte for each interval."""
    chords = np.cumsum(np.diff(performance.starts, prepend=performance.starts[:1]) > spread)
    from_below = np.lexsort((performance.pitches, chords))
    intervals = np.diff(performance.pitches[from_below].astype(np.int64)) + 127
    missing = max(0, _INTERVALS - len(intervals))
    intervals = np.append(intervals, np.full(missing, _NOTHING, np.int64))
    windows = np.lib.stride_tricks.sliding_window_view(intervals, _INTERVALS)
    return np.unique(windows @ (256 ** np.arange(_INTERVALS, dtype=np.int64)))


def _shared(runs: Sequence[Int64[ndarray, "_"]]) -> list[tuple[int, int, int]]:
    """Pairs of performances, and how many runs they share."""
    if not runs:
        return []
    files = np.repeat(np.arange(len(runs)), [len(one) for one in runs])
    found = np.concatenate(runs)
    order = np.argsort(found, kind="stable")
    found, files = found[order], files[order]
    pairs = [
        files[:-step][same] * len(runs) + files[step:][same]
        for step in range(1, _FILES_OF_A_RUN)
        if (same := found[step:] == found[:-step]).any()
    ]
    if not pairs:
        return []
    numbers, counts = np.unique(np.concatenate(pairs), return_counts=True)
    ones, others = np.divmod(numbers, len(runs))
    return list(zip(ones.tolist(), others.tolist(), counts.tolist(), strict=True))
