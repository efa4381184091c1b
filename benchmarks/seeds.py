"""Kept comparisons on music of one setting and different seeds, as one: for those of hours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from statistics import fmean
from typing import Any

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
    for what in ("precision", "held_out", "settings", "model", "data", "parameters", "counting"):
        of_kept, of_other = (_compared(what, result) for result in (kept, other))
        if of_kept != of_other:
            raise ValueError(f"{what} must be {of_kept} for seeds to be added, got {of_other}")
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


def _compared(what: str, result: Mapping[str, Any]) -> Any:
    """What must be equal: of what was measured, for which positions; of settings, all but seeds."""
    part = deepcopy(result["machine" if what == "precision" else what])
    if what == "precision":
        return part.get(what)
    if what == "held_out":
        return sorted(part)
    if what == "settings":
        part["training"].pop("seed")
    return part


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
        name: "; ".join(dict.fromkeys(machine[name] for machine in (one, two) if name in machine))
        for name in names
    }
