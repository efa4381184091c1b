"""Local attention: time and memory beside the floor, maps, growth by length, a rolling cache.

Each pass of all patterns runs in one interleaved run with plain SDPA over all pairs. The floor is
the share of the pairs that takes part times plain SDPA's time in the same round.

Each part is saved when it is measured; with `--parts` some are measured again, and the others stay.

    python -m benchmarks.local
    python -m benchmarks.local --parts rolling memory
    python -m benchmarks.local --length 2048 --out some.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import RESULTS, save
from .measure.local import measure_floors, measure_growth, measure_maps, measure_short
from .measure.local_memory import measure_memory
from .measure.machine import machine, note_machine
from .measure.rolling import LEAST_TOKENS, measure_rolling
from .report.local_section import local_verdict

LENGTH = 16384
CACHED = 100_000
# Plain SDPA over all pairs of them takes hours.
MOST_TOKENS = 1 << 20


# What is measured, from the options.
PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "time": lambda options: measure_floors(options.length),
    "maps": lambda options: measure_maps(),
    "growth": lambda options: measure_growth(options.length // 4, 4 * options.length),
    "short": lambda options: measure_short(512),
    "memory": lambda options: measure_memory(options.length),
    "rolling": lambda options: measure_rolling(options.cached),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=LENGTH, help=f"in tokens ({LENGTH})")
    parser.add_argument("--cached", type=int, default=CACHED, help=f"tokens decoded ({CACHED})")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), help="these alone (all)")
    parser.add_argument("--out", type=Path, help="benchmarks/results/local.json")
    options = parser.parse_args()
    for name, least in (("length", 512), ("cached", LEAST_TOKENS)):
        if not least <= getattr(options, name) <= MOST_TOKENS:
            parser.error(
                f"--{name}: must be in {least}..{MOST_TOKENS}, got {getattr(options, name)}"
            )
    if options.out is not None and options.out.is_dir():
        parser.error(f"--out: must be a file, got the folder {options.out}")
    if options.out is None and (options.length, options.cached) != (LENGTH, CACHED):
        parser.error("--out: must be given with --length or --cached, whose result is another")
    out = options.out or RESULTS / "local.json"
    sizes = {"length": options.length, "cached": options.cached}
    result: dict[str, Any] = {"machine": machine()} | sizes
    if options.parts and out.exists():
        result = json.loads(out.read_text())
        if {name: result.get(name) for name in sizes} != sizes:
            parser.error(f"--parts: {out} must have been measured at {sizes}")
    for part in options.parts or PARTS:
        result[part] = PARTS[part](options)
        note_machine(result, part)
        save(out, result)
    print(f"wrote {out}")
    print(local_verdict(result))


if __name__ == "__main__":
    main()
