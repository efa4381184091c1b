"""Peak memory of one contender, forward and backward, in this process alone: prints JSON.

python benchmarks/memory.py CASE_NUMBER CONTENDER LENGTH BATCH
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from cases import cases


def resident(name: str) -> float:
    """`VmRSS`, the resident set now, or `VmHWM`, the largest so far, in MiB (Linux).

    Not `getrusage`: what that calls the largest is inherited from the parent process.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status must have {name}")


def main() -> None:
    index, name, length, batch = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    from attention import inputs

    for size in (64, length):  # the first run loads the libraries
        tensors = inputs(size, batch)
        case = cases(size, heads=tensors[0].shape[1], width=tensors[0].shape[3])[index]
        runs = {"plain SDPA": case.unit} | {some.name: some.run for some in case.contenders}
        before = resident("VmRSS")
        runs[name](*tensors).backward(torch.ones_like(tensors[0]))
    peak = resident("VmHWM")
    print(json.dumps({"growth_mib": peak - before, "peak_mib": peak}))


if __name__ == "__main__":
    main()
