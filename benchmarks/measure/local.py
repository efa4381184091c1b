"""Local attention in time: beside its floor, at two lengths, and where the window hides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from relpos import attention

from ..workloads.local import LOCAL_TERMS, PATTERNS, local_workload
from ..workloads.neighborhoods import MAPS, map_workload
from ..workloads.settings import Setting
from ..workloads.workload import NATIVE, UNIT, Run, Workload, contenders, inputs
from .passes import BOTH, FORWARD, TimedRuns, errors, forward, forward_and_backward, passes
from .timing import Rounds, interleaved, percentiles, ratios

__all__ = ["measure_floors", "measure_growth", "measure_maps", "measure_short"]

BIASES = "learned biases"
_JUDGED = 256  # the last queries, whose results are held against float64


def _setting(length: int, *, rivals: bool = False) -> Setting:
    return Setting(f"L={length}", length, LOCAL_TERMS, batch=1, backends=("native",), rivals=rivals)


def _workloads(setting: Setting) -> Iterator[tuple[str, str, Workload]]:
    """Every pattern with and without terms, by both their names."""
    for name, pattern in PATTERNS.items():
        for terms in LOCAL_TERMS:
            yield name, terms, local_workload(pattern, terms, setting)


def measure_floors(length: int, *, seconds: float = 2.0) -> list[dict]:
    """A row for each pattern, terms, contender and pass: times as multiples of plain and floor."""
    setting = _setting(length, rivals=True)
    tensors = inputs(setting)
    timed: dict[str, TimedRuns] = {FORWARD: {}, BOTH: {}}
    found: dict[str, tuple[str, str, str, float]] = {}
    for name, terms, workload in _workloads(setting):
        runs = contenders(setting, workload)
        errors = _errors(workload, runs, tensors)
        for pass_name, those in passes(setting, workload, runs, tensors).items():
            for contender, run in those.items():
                key = UNIT if contender == UNIT else f"{name}: {terms}: {contender}"
                timed[pass_name].setdefault(key, run)
                if contender != UNIT:
                    found[key] = name, terms, contender, errors[contender]
    rows = []
    for pass_name, those in timed.items():
        rounds = interleaved(those, leading=(UNIT,), seconds=seconds)
        rows += [
            _row(key, *found[key], pass_name, rounds, PATTERNS[found[key][0]].share(length))
            for key in those
            if key != UNIT
        ]
    return rows


def measure_maps(*, seconds: float = 2.0) -> list[dict]:
    """The same of neighbourhoods with learned biases, whose maps are of several sizes."""
    rows = []
    for name, of in MAPS.items():
        setting, workload = of.setting, map_workload(of)
        tensors, runs = inputs(setting), contenders(setting, workload)
        error = errors(workload, runs, tensors)
        for pass_name, those in passes(setting, workload, runs, tensors).items():
            rounds = interleaved(those, leading=(UNIT, NATIVE), seconds=seconds)
            rows += [
                _row(key, name, BIASES, key, error[key], pass_name, rounds, of.share)
                | {"batch": of.batch, "heads": of.heads, "width": of.width}
                for key in those
                if key != UNIT
            ]
    return rows


def _row(
    key: str, pattern: str, terms: str, contender: str, error: float, pass_name: str,
    rounds: Rounds, share: float,
) -> dict:  # fmt: skip
    to_plain = ratios(rounds, key, UNIT)
    row = {
        "pattern": pattern,
        "terms": terms,
        "contender": contender,
        "pass": pass_name,
        "rounds": len(to_plain),
        "share": share,
        "ratio": percentiles(to_plain),
        "floor_ratio": percentiles([ratio / share for ratio in to_plain]),
        "seconds": percentiles([timings[key] for timings in rounds if key in timings]),
        "unit_seconds": percentiles([timings[UNIT] for timings in rounds]),
        "error": error,
    }
    print(
        f"{pattern:28} {terms:16} {contender:24} {pass_name:17}"
        f"{row['floor_ratio']['median']:6.2f} x floor {row['ratio']['median']:7.3f} x plain"
        f" {1e3 * row['seconds']['median']:9.2f} ms  error {error:.1e}",
        flush=True,
    )
    return row


def _errors(workload: Workload, runs: dict[str, Run], tensors: list[Tensor]) -> dict[str, float]:
    """Each contender's largest difference from float64, of the last queries of two heads."""
    q, k, v = (x[:, :2].detach().double() for x in tensors)
    q = q[:, :, -_JUDGED:]
    local = dict(workload.local)
    if "key_ranges" in local:
        local["key_ranges"] = local["key_ranges"][:, -_JUDGED:]
    with torch.no_grad():
        terms = workload.terms(tensors[0], tensors[1]).map(lambda x: x.double())
        expected = attention(q, k, v, terms, backend="reference", **local)
        return {
            name: (run(*tensors)[:, :2, -_JUDGED:].double() - expected).abs().max().item()
            for name, run in runs.items()
            if name != UNIT
        }


def measure_growth(short: int, long: int, *, seconds: float = 3.0) -> list[dict]:
    """How many times as long a pair takes at a larger length: 1 where time grows with the pairs."""
    rows = []
    for pass_name in (FORWARD, BOTH):
        for name in PATTERNS:
            for terms in LOCAL_TERMS:
                rows.append(_growth(name, terms, pass_name, (short, long), seconds))
    return rows


def _growth(
    name: str, terms: str, pass_name: str, lengths: tuple[int, int], seconds: float
) -> dict:
    pattern, (short, long) = PATTERNS[name], lengths
    timed: TimedRuns = {}
    for length in (short, long):
        setting = _setting(length)
        workload, tensors = local_workload(pattern, terms, setting), inputs(setting)
        runs = {NATIVE: contenders(setting, workload)[NATIVE]}
        timed[str(length)] = passes(setting, workload, runs, tensors)[pass_name][NATIVE]
    rounds = interleaved(timed, leading=tuple(timed), seconds=seconds)
    grown = ratios(rounds, str(long), str(short))
    row = {
        "pattern": name, "terms": terms, "pass": pass_name, "short": short, "long": long,
        "rounds": len(grown),
        "per_token": percentiles([x * short / long for x in grown]),
        "per_pair": percentiles([x * pattern.pairs(short) / pattern.pairs(long) for x in grown]),
    }  # fmt: skip
    print(
        f"{name:28} {terms:16} {pass_name:17} from {short} to {long} tokens: a pair takes "
        f"{row['per_pair']['median']:.2f} times as long, a token {row['per_token']['median']:.2f}",
        flush=True,
    )
    return row


def measure_short(length: int, *, seconds: float = 4.0) -> list[dict]:
    """A window that hides nothing, as a multiple of the same call without one."""
    rows = []
    setting = _setting(length)
    tensors = inputs(setting)
    for terms in LOCAL_TERMS:
        workload = local_workload(PATTERNS["window (512, 0)"], terms, setting)
        leaves, grad = [*tensors, *workload.tables], torch.ones_like(tensors[0])

        def run(window, q, k, v, workload=workload):
            return attention(q, k, v, workload.terms(q, k), window=window, backend="native")

        runs: dict[str, Run] = {
            "with": partial(run, (length, length)), "without": partial(run, None)
        }  # fmt: skip
        timed = {
            FORWARD: {n: partial(forward, one, tensors) for n, one in runs.items()},
            BOTH: {
                n: partial(forward_and_backward, one, tensors, leaves, grad)
                for n, one in runs.items()
            },
        }
        for pass_name, those in timed.items():
            rounds = interleaved(those, leading=tuple(those), seconds=seconds, max_rounds=400)
            row = {
                "length": length, "terms": terms, "pass": pass_name, "rounds": len(rounds),
                "ratio": percentiles(ratios(rounds, "with", "without")),
            }  # fmt: skip
            rows.append(row)
            print(
                f"L={length}, window ({length}, {length}), {terms:16} {pass_name:17}"
                f"{row['ratio']['median']:6.3f} x without",
                flush=True,
            )
    return rows
