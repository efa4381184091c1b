"""Attention over several processes on this machine: time, bytes, memory, overlap, and the plan.

Time is that of two ranks of one pinned thread each beside one process of one thread and of two, in
the same rounds. More ranks share the cores: of four, bytes and memory are measured, and no speed.

Each part is saved when it is measured; with `--parts` some are measured again, and the others stay.

    python -m benchmarks.distributed
    python -m benchmarks.distributed --parts time plan
    python -m benchmarks.distributed --length 1024 --out some.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import RESULTS, save
from .measure.distributed import (
    measure_bytes,
    measure_memory,
    measure_plan,
    measure_time,
    measure_timeline,
)
from .measure.machine import machine
from .report.distributed_section import distributed_verdict

LENGTH = 8192
MOST_TOKENS = 1 << 18

# What is measured, from the length.
PARTS: dict[str, Callable[[int], Any]] = {
    "bytes": lambda length: measure_bytes(length // 2),
    "time": measure_time,
    "timeline": measure_timeline,
    "plan": measure_plan,
    "memory": lambda length: measure_memory(4 * length),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=LENGTH, help=f"in tokens ({LENGTH})")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), help="these alone (all)")
    parser.add_argument("--out", type=Path, help="benchmarks/results/distributed.json")
    options = parser.parse_args()
    if not 64 <= options.length <= MOST_TOKENS:
        parser.error(f"--length: must be in 64..{MOST_TOKENS}, got {options.length}")
    if options.out is not None and (options.out.is_dir() or not options.out.parent.is_dir()):
        parser.error(f"--out: must be a file in a folder that is there, got {options.out}")
    if options.out is None and options.length != LENGTH:
        parser.error("--out: must be given with --length, whose result is another")
    out = options.out or RESULTS / "distributed.json"
    result: dict[str, Any] = {"length": options.length, "machines": {}}
    if options.parts and out.exists():
        try:
            result = dict(json.loads(out.read_text()))
        except (OSError, ValueError, TypeError) as error:
            parser.error(f"--out: {out} must hold an earlier result, got {error}")
        if result.get("length") != options.length:
            parser.error(f"--parts: {out} must have been measured at --length {options.length}")
    for part in options.parts or PARTS:
        result.setdefault("machines", {})[part] = machine() | {"threads": 1}
        result[part] = PARTS[part](options.length)
        save(out, result)
    print(f"wrote {out}")
    print(distributed_verdict(result))


if __name__ == "__main__":
    main()
