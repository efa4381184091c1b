"""Adapted models of transformers: time of a layer and its attention, peak memory, parity.

The models have the sizes of published ones, random weights and two layers, of which the second is
timed. The original is the fastest of its implementations in the same interleaved run.

    python -m benchmarks.adapters
    python -m benchmarks.adapters --equality          # small models of every family
    python -m benchmarks.adapters --long              # inputs of an hour
    python -m benchmarks.adapters --models "WavLM base" --parts time
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .files import RESULTS, save
from .measure.adapted import measure_time
from .measure.adapted_equality import measure_equality
from .measure.adapted_memory import measure_memory
from .measure.long_inputs import measure_long
from .measure.machine import machine
from .report.adapters_page import adapters_verdict
from .workloads.adapted import LONG_INPUTS, MODELS

PARTS = {"time": measure_time, "memory": measure_memory}


def main() -> None:
    names = [model.name for model in MODELS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="MODEL",
                        help=f"these alone (all): {', '.join(names)}")  # fmt: skip
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--equality", action="store_true", help="instead: differences of families")
    longs = [one.name for one in LONG_INPUTS]
    parser.add_argument("--long", nargs="*", choices=longs,
                        metavar="INPUT", help="instead: long inputs, these (all)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS / "adapters.json")
    options = parser.parse_args()
    if options.out.is_dir():
        parser.error(f"--out: must be a file, got the folder {options.out}")
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    result["machine"] = machine()
    commits = result.setdefault("commits", {})
    if options.equality:
        result["equality"] = measure_equality()
        commits["equality"] = machine()["commit"]
        save(options.out, result)
        return
    if options.long is not None:
        for name in options.long or [each.name for each in LONG_INPUTS]:
            others = [row for row in result.get("long", []) if row["name"] != name]
            result["long"] = [*others, measure_long(name)]
            commits[f"long: {name}"] = machine()["commit"]
            save(options.out, result)
        return
    for model in MODELS:
        if model.name not in options.models:
            continue
        for part in options.parts:
            others = [row for row in result.get(part, []) if row["model"] != model.name]
            result[part] = others + PARTS[part](model)
            commits[f"{model.name}: {part}"] = machine()["commit"]
            save(options.out, result)
    print(f"wrote {options.out}")
    print(adapters_verdict(result))


if __name__ == "__main__":
    main()
