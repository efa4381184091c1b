"""`attn_implementation="relpos"` beside models' own: time, peak memory, and a sweep.

The models have the sizes of published ones, random weights and two layers, of which one is timed;
beside them stands the fastest of their own implementations that is right, in the same interleaved
run. `--sweep` asks instead, of every model that transformers lists for texts and images, made
small, whether its outputs stay the same.

    python -m benchmarks.attn_implementation
    python -m benchmarks.attn_implementation --models "BERT base" --parts time
    python -m benchmarks.attn_implementation --sweep
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .files import RESULTS, save
from .measure.implementation_sweep import KINDS, measure_sweep
from .measure.machine import machine
from .measure.model_parts import PARTS, measure_parts
from .workloads.adapted import WITHOUT_RELATIVE


def main() -> None:
    names = [model.name for model in WITHOUT_RELATIVE]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="MODEL",
                        help=f"these alone (all): {', '.join(names)}")  # fmt: skip
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument(
        "--sweep", nargs="*", choices=tuple(KINDS), metavar="KIND",
        help=f"instead: small models of these kinds (all): {', '.join(KINDS)}",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS / "attn_implementation.json")
    options = parser.parse_args()
    if options.out.is_dir():
        parser.error(f"--out: must be a file, got the folder {options.out}")
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.sweep is not None:
        result.setdefault("machine", machine())
        commits = result.setdefault("commits", {})
        for kind in options.sweep or KINDS:
            others = [row for row in result.get("sweep", []) if row["kind"] != kind]
            result["sweep"] = others + measure_sweep(kind)
            commits[f"sweep: {kind}"] = machine()["commit"]
            save(options.out, result)
        return
    result["machine"] = machine()
    chosen = [model for model in WITHOUT_RELATIVE if model.name in options.models]
    measure_parts(chosen, options.parts, result, options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
