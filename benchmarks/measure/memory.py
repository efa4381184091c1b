"""Peak memory of one contender, forward and backward, in a fresh process that prints JSON.

python -m benchmarks.measure.memory SETTING SCHEME CONTENDER
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import cache

import torch

from relpos_tasks.machine import status_mib

from ..files import ROOT
from ..workloads.rivals import FORWARD_ONLY
from ..workloads.schemes import make_workload
from ..workloads.settings import Setting, find_setting
from ..workloads.workload import UNIT, contenders, inputs

__all__ = ["printed_by", "rows_of_memory"]


@cache
def in_fresh_process(setting: str, scheme: str, contender: str) -> dict[str, float]:
    """Peak of a process that runs forward and backward once, and its growth by it, in MiB."""
    return printed_by("benchmarks.measure.memory", setting, scheme, contender)


def printed_by(module: str, *arguments: str) -> dict[str, float]:
    """The JSON that a module prints last, run in a fresh process."""
    process = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def rows_of_memory(setting: Setting) -> list[dict]:
    """Every contender of a setting that has a backward, with the unit's memory beside it."""
    rows, units = [], {}
    for scheme in setting.schemes:
        workload = make_workload(scheme, setting.at(64))
        if workload.causal not in units:  # the unit is the same for all schemes that are
            units[workload.causal] = in_fresh_process(setting.name, scheme, UNIT)
        unit = units[workload.causal]
        for contender in contenders(setting, workload):
            if contender == UNIT or contender in FORWARD_ONLY:
                continue
            measured = in_fresh_process(setting.name, scheme, contender)
            rows.append(
                {"setting": setting.name, "workload": scheme, "contender": contender}
                | measured
                | {f"unit_{key}": value for key, value in unit.items()}
                | {
                    "peak_ratio": measured["peak_mib"] / unit["peak_mib"],
                    "growth_ratio": measured["growth_mib"] / unit["growth_mib"],
                }
            )
            print(
                f"{setting.name:26} {scheme:26} {contender:22} grows by "
                f"{measured['growth_mib']:6.0f} MiB to {measured['peak_mib']:6.0f}, "
                f"{rows[-1]['peak_ratio']:.2f} x plain",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("setting", "scheme", "contender"):
        parser.add_argument(name)
    options = parser.parse_args()
    full = find_setting(options.setting)
    for length in (64, full.queries):  # the first run loads the libraries
        setting = full.at(length)
        workload, tensors = make_workload(options.scheme, setting), inputs(setting)
        before = status_mib("VmRSS")
        output = contenders(setting, workload)[options.contender](*tensors)
        output.backward(torch.ones_like(output))
    peak = status_mib("VmHWM")
    print(json.dumps({"growth_mib": peak - before, "peak_mib": peak}))


if __name__ == "__main__":
    main()
