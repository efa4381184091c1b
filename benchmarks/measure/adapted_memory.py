"""Peak memory of a model of two layers, in a fresh process that prints JSON.

python -m benchmarks.measure.adapted_memory MODEL LENGTH relpos|IMPLEMENTATION
"""

from __future__ import annotations

import argparse
import json
import resource
from typing import Any

import torch

from relpos_tasks.machine import status_mib

from ..workloads.adapted import AdaptedModel, draw, find_model
from .adapted import ADAPTED, choose, implementations, use_relpos
from .memory import printed_by

__all__ = ["LIMIT_GIB", "measure_memory"]

LIMIT_GIB = 16  # of address space: what asks for more is told no


def measure_memory(model: AdaptedModel) -> list[dict]:
    """The growth of a process by one forward pass, at each length, original and adapted."""
    rows = []
    original = implementations(model.build(2))[-1]
    for length in model.memory:
        row = {"model": model.name, "unit": model.unit, "length": length, "original": original}
        for name, key in ((original, "original_mib"), (ADAPTED, "adapted_mib")):
            row[key] = printed_by(__name__, model.name, str(length), name)["growth_mib"]
        rows.append(row)
        print(f"{model.name:24} {length:6} {row['original_mib']} -> {row['adapted_mib']} MiB",
              flush=True)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("model", "length", "contender"):
        parser.add_argument(name)
    options = parser.parse_args()
    limit = LIMIT_GIB * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    chosen = find_model(options.model)
    model: Any = draw(chosen.build(2))
    if options.contender == ADAPTED:
        use_relpos(chosen, model)
    else:
        choose(model, options.contender)
    growth: float | None = None
    try:
        with torch.no_grad():
            if chosen.lengths[0] < int(options.length):
                model(**chosen.inputs(chosen.lengths[0]))  # the first run loads the libraries
            before = status_mib("VmRSS")
            model(**chosen.inputs(int(options.length)))
            growth = status_mib("VmHWM") - before
    except (MemoryError, RuntimeError) as error:
        if "alloc" not in str(error) and not isinstance(error, MemoryError):
            raise
    print(json.dumps({"growth_mib": growth}))


if __name__ == "__main__":
    main()
