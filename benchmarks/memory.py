"""Peak memory of one contender, forward and backward, in this process alone: prints JSON.

python benchmarks/memory.py SCENE CASE CONTENDER
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch

from cases import UNIT, contenders, inputs, make_case
from rivals import FORWARD_ONLY
from scenes import Scene, scene

__all__ = ["all_memory"]


def resident(name: str) -> float:
    """`VmRSS`, the resident set now, or `VmHWM`, the largest so far, in MiB (Linux).

    Not `getrusage`: what that calls the largest is inherited from the parent process.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status must have {name}")


@cache
def fresh(where: str, case: str, contender: str) -> dict[str, float]:
    """Peak of a fresh process that runs forward and backward once, and its growth, in MiB."""
    out = subprocess.run(
        [sys.executable, __file__, where, case, contender],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(out.stdout.splitlines()[-1])


def all_memory(where: Scene) -> list[dict]:
    """Every contender of a scene that has a backward, with the unit's memory beside it."""
    rows, units = [], {}
    for name in where.cases:
        case = make_case(name, where.at(64))
        if case.causal not in units:  # the unit is the same for all cases that are
            units[case.causal] = fresh(where.name, name, UNIT)
        unit = units[case.causal]
        for contender in contenders(where, case):
            if contender == UNIT or contender in FORWARD_ONLY:
                continue
            own = fresh(where.name, name, contender)
            rows.append(
                {"scene": where.name, "case": name, "contender": contender}
                | own
                | {f"unit_{key}": value for key, value in unit.items()}
                | {
                    "peak_ratio": own["peak_mib"] / unit["peak_mib"],
                    "growth_ratio": own["growth_mib"] / unit["growth_mib"],
                }
            )
            print(
                f"{where.name:26} {name:26} {contender:22} grows by {own['growth_mib']:6.0f} MiB "
                f"to {own['peak_mib']:6.0f}, {rows[-1]['peak_ratio']:.2f} x plain",
                flush=True,
            )
    return rows


def main() -> None:
    where, name, contender = sys.argv[1:]
    for length in (64, scene(where).queries):  # the first run loads the libraries
        at = scene(where).at(length)
        case, tensors = make_case(name, at), inputs(at)
        before = resident("VmRSS")
        output = contenders(at, case)[contender](*tensors)
        output.backward(torch.ones_like(output))
    peak = resident("VmHWM")
    print(json.dumps({"growth_mib": peak - before, "peak_mib": peak}))


if __name__ == "__main__":
    main()
