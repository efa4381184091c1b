"""Interleaved timing: every round runs each contender once, and ratios are taken within a round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from math import ceil

__all__ = ["Clock", "interleaved", "percentiles", "ratios", "wall_clock"]

_SHORTEST = 0.005  # seconds of one timing: what is shorter runs several times in it

Rounds = list[dict[str, float]]  # for each round the seconds of one run, by contender
Clock = Callable[[Callable[[], object], int], float]  # the seconds of one of so many runs


def wall_clock(run: Callable[[], object], repeats: int) -> float:
    """The seconds of one run, by the processor's clock."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def _repeats(run: Callable[[], object], clock: Clock) -> int:
    """How many runs make one timing; also warms up."""
    seconds = clock(run, 1)
    if seconds < 0.5:  # the first run may have loaded a library
        seconds = min(clock(run, 1) for _ in range(3))
    return ceil(_SHORTEST / seconds)


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    *,
    leading: tuple[str, ...] = (),
    seconds: float,
    max_rounds: int = 25,
    clock: Clock = wall_clock,
) -> Rounds:
    """Time `runs` in rounds.

    Args:
        runs: by name.
        leading: those that have at least five rounds, and run in every round that any other has.
        seconds: after how many a contender rests, once it has its rounds (others: at least three).
        max_rounds: at which all rest.
        clock: takes the time; no work may be left when it returns.
    """
    repeats = {name: _repeats(run, clock) for name, run in runs.items()}
    spent = dict.fromkeys(runs, 0.0)
    rounds: Rounds = []
    while len(rounds) < max_rounds:
        unfinished = [
            name for name in runs
            if len(rounds) < (5 if name in leading else 3) or spent[name] < seconds
        ]  # fmt: skip
        if not unfinished:
            break
        timings = {
            name: clock(run, repeats[name])
            for name, run in runs.items()
            if name in unfinished or name in leading
        }
        for name, timing in timings.items():
            spent[name] += timing * repeats[name]
        rounds.append(timings)
    return rounds


def ratios(rounds: Rounds, name: str, other: str) -> list[float]:
    """How many times as long as `other` a contender took, in the rounds that had both."""
    return [
        timings[name] / timings[other] for timings in rounds if name in timings and other in timings
    ]


def percentiles(values: list[float]) -> dict[str, float]:
    """Median, and 20th and 80th percentile."""
    steps = statistics.quantiles(values, n=5, method="inclusive")
    return {"median": statistics.median(values), "p20": steps[0], "p80": steps[3]}
