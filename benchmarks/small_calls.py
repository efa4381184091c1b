"""Small calls on the CPU beside plain SDPA in the same dtype, and the fixed cost of a call.

Each part is saved when it is measured; with `--parts` one is measured again, and the other stays.

    python -m benchmarks.small_calls
    python -m benchmarks.small_calls --parts fixed_costs
    python -m benchmarks.small_calls --only "float32, L=64, B=8" --out some.json
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from relpos.ops.native.library import instructions

from .files import RESULTS, save
from .measure.machine import machine
from .measure.passes import measure_settings
from .measure.small_calls import measure_fixed_costs, time_small_calls
from .options import check_out, check_part
from .report.small_calls_section import fixed_costs_verdict
from .report.targets import SMALL_TARGETS, verdict
from .workloads.settings import SMALL_SETTINGS

PARTS = ("time", "fixed_costs")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="benchmarks/results/small_calls.json")
    parser.add_argument("--only", nargs="+", help="names of settings, with --out (all)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(both)")
    options = parser.parse_args()
    # Else torch.compile starts processes, which take a core each while something is timed.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    check_part(parser, options.only, (setting.name for setting in SMALL_SETTINGS), options.out)
    out = options.out or RESULTS / "small_calls.json"
    check_out(parser, out)
    settings = [one for one in SMALL_SETTINGS if not options.only or one.name in options.only]
    result: dict[str, Any] = {"settings": {}, "time": [], "fixed_costs": {"rows": []}}
    if out.exists():
        result |= json.loads(out.read_text())
    for part in options.parts:
        if part == "time":
            result |= measure_settings(settings, time_small_calls)
        else:
            measured = measure_fixed_costs()
            result |= {"machine": machine() | {"instructions": instructions()}}
            result["fixed_costs"] = measured
        save(out, result)
    print(f"wrote {out}")
    print(verdict(result, SMALL_TARGETS))
    print(fixed_costs_verdict(result["fixed_costs"]))


if __name__ == "__main__":
    main()
