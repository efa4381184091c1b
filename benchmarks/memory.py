"""Peak memory of one contender, forward and backward, in this process alone: prints JSON.

python benchmarks/memory.py CASE_NUMBER CONTENDER LENGTH BATCH
"""

from __future__ import annotations

import json
import resource
import sys

import torch

from cases import cases


def peak() -> float:
    """Largest resident set so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    index, name, length, batch = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    from attention import inputs

    for size in (64, length):  # the first run loads the libraries
        tensors = inputs(size, batch)
        case = cases(size, heads=tensors[0].shape[1], width=tensors[0].shape[3])[index]
        runs = {"plain SDPA": case.unit} | {some.name: some.run for some in case.contenders}
        before = peak()
        runs[name](*tensors).backward(torch.ones_like(tensors[0]))
    print(json.dumps({"growth_mib": peak() - before, "peak_mib": peak()}))


if __name__ == "__main__":
    main()
