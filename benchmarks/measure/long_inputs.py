"""Adapted models on inputs of an hour: time and peak memory, in a fresh process that prints JSON.

python -m benchmarks.measure.long_inputs "one hour of speech"
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch

from relpos.adapters import adapt
from relpos_tasks.machine import status_mib

from ..workloads.adapted import (
    HALF_LONG_INPUTS,
    LONG_INPUTS,
    cast,
    draw,
    find_long_input,
    find_model,
)
from .memory import printed_by

__all__ = ["measure_long"]


def measure_long(name: str) -> dict:
    """Seconds and peak memory of one forward pass, and how far a short one is from the original."""
    chosen = find_long_input(name)
    row = {
        "name": name, "model": chosen.model, "unit": find_model(chosen.model).unit,
        "length": chosen.length, "layers": chosen.layers, "all_layers": chosen.all_layers,
    }  # fmt: skip
    row |= printed_by(__name__, name)
    print(
        f"{name} ({chosen.model}, {chosen.length} {row['unit']}, {chosen.layers} layers): "
        f"{row['seconds'] / 60:.1f} minutes, {row['peak_mib'] / 1024:.1f} GiB, "
        f"{row['difference']:.1e} from the original on {row['compared']}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=[each.name for each in (*LONG_INPUTS, *HALF_LONG_INPUTS)])
    chosen = find_long_input(parser.parse_args().name)
    model, dtype = find_model(chosen.model), chosen.torch_dtype
    built = draw(model.build(chosen.layers)).to(dtype)
    # The whole network on a cut that is short enough for the original.
    short = model.lengths[1]
    with torch.inference_mode():
        expected = built(**cast(model.inputs(short), dtype)).last_hidden_state
        adapt(built)
        found = built(**cast(model.inputs(short), dtype)).last_hidden_state
        inputs = cast(model.inputs(chosen.length), dtype)
        print(f"{chosen.name}: begins", file=sys.stderr)
        start = time.perf_counter()
        output = built(**inputs).last_hidden_state
        seconds = time.perf_counter() - start
    assert torch.isfinite(output).all()
    print(
        json.dumps({
            "seconds": seconds,
            "peak_mib": status_mib("VmHWM"),
            "difference": float((found - expected).abs().max() / expected.abs().max()),
            "compared": short,
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
