"""Adapted models of transformers: time of a layer and its attention, peak memory, parity.

The models have the sizes of published ones, random weights and two layers, of which the second is
timed. The original is the fastest of its implementations in the same interleaved run.

    python -m benchmarks.adapters
    python -m benchmarks.adapters --equality          # small models of every family
    python -m benchmarks.adapters --long              # inputs of an hour
    python -m benchmarks.adapters --models "WavLM base" --parts time
    python -m benchmarks.adapters --device cuda       # time alone, in bfloat16
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from .files import RESULTS, save
from .measure.adapted import measure_time
from .measure.adapted_equality import measure_equality
from .measure.gpu import describe, event_clock
from .measure.long_inputs import measure_long
from .measure.machine import gpu, machine, note_machine
from .measure.model_parts import PARTS, measure_parts
from .report.adapters_page import adapters_verdict
from .workloads.adapted import LONG_INPUTS, MODELS


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
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=4.0, help="on a GPU (4)")
    parser.add_argument(
        "--out", type=Path, help="benchmarks/results/adapters.json, or gpu_adapters"
    )
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("--device: cuda needs a CUDA device")
    if on_gpu and (options.equality or options.long is not None or "time" not in options.parts):
        parser.error("--device: cuda takes neither --equality nor --long, and measures time alone")
    if options.out is None:
        options.out = RESULTS / ("gpu_adapters.json" if on_gpu else "adapters.json")
    if options.out.is_dir():
        parser.error(f"--out: must be a file, got the folder {options.out}")
    if on_gpu:
        measure_on_gpu(options.models, options.minutes, options.out)
        return
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    result["machine"] = machine()
    if options.equality:
        result["equality"] = measure_equality()
        note_machine(result, "equality")
        save(options.out, result)
        return
    if options.long is not None:
        for name in options.long or [each.name for each in LONG_INPUTS]:
            others = [row for row in result.get("long", []) if row["name"] != name]
            result["long"] = [*others, measure_long(name)]
            note_machine(result, f"{name}: long")
            save(options.out, result)
        return
    chosen = [model for model in MODELS if model.name in options.models]
    measure_parts(chosen, options.parts, result, options.out)
    print(f"wrote {options.out}")
    print(adapters_verdict(result))


def measure_on_gpu(names: list[str], minutes: float, out: Path) -> None:
    """Time of the models in bfloat16, as many as there is time for; `out` is written after each."""
    end = time.monotonic() + 60 * minutes
    result: dict = {"machine": machine() | gpu(), "dtype": "bfloat16", "time": [], "left_out": []}
    for model in MODELS:
        if model.name not in names:
            continue
        try:
            if time.monotonic() > end:
                raise TimeoutError(f"the {minutes:g} minutes were over")
            result["time"] += measure_time(
                model, seconds=0.1, dtype=torch.bfloat16, device="cuda", clock=event_clock
            )
        except Exception as error:  # the next model may run all the same
            result["left_out"].append({"model": model.name, "reason": describe(error)})
            print(f"{model.name}: left out: {describe(error)}", flush=True)
        save(out, result)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
