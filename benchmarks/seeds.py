"""Kept comparisons on music of one setting and different seeds, as one: for those of hours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from statistics import fmean
from typing import Any

from relpos_tasks.training.settings import settings_differ

from .report.league_standings import conditions_of

__all__ = ["with_seeds_of"]


def with_seeds_of(kept: dict, other: dict) -> dict:
    """What one comparison would have found over the seeds of both.

    Args:
        kept: a result of `relpos music compare`, as it is committed.
        other: another one of the same settings and data, with other seeds. Its curves are left out,
            as those of all seeds but the first are.

    Raises:
        ValueError: if it is of another task, they differ in more than seeds, or share one.
    """
    for result in (kept, other):
        if "lengths_by_seed" not in result:
            raise ValueError("results must be of `relpos music compare` for seeds to be added")
    if difference := settings_differ(_conditions(kept), _conditions(other)):
        raise ValueError(f"results must differ in their seeds alone, got {difference}")
    if twice := set(kept["seeds"]) & set(other["seeds"]):
        raise ValueError(f"seeds must not be in the result yet, got {min(twice)}")

    counts = len(kept["seeds"]), len(other["seeds"])
    result = deepcopy(kept)
    result["machine"] = _either(kept["machine"], other["machine"])
    result["seeds"] = kept["seeds"] + other["seeds"]
    result["seconds"] = round(kept["seconds"] + other["seconds"], 2)
    for name, found in result["held_out"].items():
        found["nats_by_seed"] += other["held_out"][name]["nats_by_seed"]
        found["nats"] = fmean(found["nats_by_seed"])
    for name, of_seeds in result["lengths_by_seed"].items():
        of_seeds.extend(other["lengths_by_seed"][name])
        windows = of_seeds[0]
        result["lengths"][name] = {n: fmean(one[n] for one in of_seeds) for n in windows}

    def mean(one: float, two: float) -> float:
        return round((counts[0] * one + counts[1] * two) / sum(counts), 2)

    for what, combine in {
        "steps_per_second": mean,
        "training_seconds": mean,
        "cores_used_by_others": mean,
        "peak_memory_mib": max,
        "timed_on_a_busy_machine": max,
    }.items():
        result[what] = _by_position(combine, kept[what], other[what])
    return result


def _conditions(result: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal: all but the seeds and what was found with them."""
    positions = sorted(result["held_out"])
    alike = {name: result.get(name) for name in ("parameters", "counting", "steps")}
    return {"positions": positions} | alike | conditions_of(result)


def _by_position(
    combine: Callable[[Any, Any], Any], one: Mapping[str, Any], two: Mapping[str, Any]
) -> dict[str, Any]:
    """One figure for two, by position; None where one is missing."""
    pairs = {name: (one[name], two[name]) for name in one}
    return {name: None if None in pair else combine(*pair) for name, pair in pairs.items()}


def _either(one: Mapping[str, str], two: Mapping[str, str]) -> dict[str, str]:
    """What is true of both machines, and both where they differ."""
    names = dict.fromkeys([*one, *two])
    return {
        name: "; ".join(
            dict.fromkeys(
                fact
                for machine in (one, two)
                if name in machine
                for fact in machine[name].split("; ")
            )
        )
        for name in names
    }
