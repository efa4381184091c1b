"""Peak memory of local attention beside its tensors, in a fresh process that prints JSON.

python -m benchmarks.measure.local_memory PATTERN TERMS LENGTH
"""

from __future__ import annotations

import argparse
import json

import torch

from relpos_tasks.machine import status_mib

from ..workloads.local import LOCAL_TERMS, PATTERNS, local_workload
from ..workloads.settings import Setting
from ..workloads.workload import NATIVE, contenders, inputs
from .memory import printed_by

__all__ = ["measure_memory"]


def measure_memory(length: int) -> list[dict]:
    """The peak of forward and backward of each pattern, as a multiple of inputs and results.

    Those are q, k, v and the output, and the gradients of all four.
    """
    rows = []
    for pattern in PATTERNS:
        for terms in LOCAL_TERMS:
            row = {"pattern": pattern, "terms": terms, "length": length}
            rows.append(row | printed_by(__name__, pattern, terms, str(length)))
            print(
                f"{pattern:28} {terms:16} L={length}: {rows[-1]['peak_mib']:.0f} MiB, "
                f"{rows[-1]['ratio']:.2f} x its tensors",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("pattern", "terms", "length"):
        parser.add_argument(name)
    options = parser.parse_args()
    for length in (64, int(options.length)):  # the first run loads the libraries
        setting = Setting("memory", length, (), batch=1, backends=("native",))
        workload = local_workload(PATTERNS[options.pattern], options.terms, setting)
        before = status_mib("VmRSS")
        q, k, v = inputs(setting)
        output = contenders(setting, workload)[NATIVE](q, k, v)
        output.backward(torch.ones_like(output))
    peak, tensors = status_mib("VmHWM") - before, 8 * q.nbytes / 2**20
    print(json.dumps({"peak_mib": peak, "tensors_mib": tensors, "ratio": peak / tensors}))


if __name__ == "__main__":
    main()
