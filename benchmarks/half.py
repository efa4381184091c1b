"""bfloat16 and float16 on the CPU, beside plain SDPA in the same dtype.

bfloat16 has a path of its own for processors with AMX, in torch as in relpos, so that the ratios of
such a machine say nothing about another: on one without AMX the committed result stays, unless
`--out` names another.

    python -m benchmarks.half
    python -m benchmarks.half --only "bfloat16, d=64" --out some.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from relpos.ops.native.library import instructions

from .files import RESULTS, save
from .measure.passes import measure_settings
from .options import check_part
from .report.targets import HALF_TARGETS, verdict
from .workloads.settings import HALF_SETTINGS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="benchmarks/results/half.json")
    parser.add_argument("--only", nargs="+", help="names of settings, with --out (all)")
    options = parser.parse_args()
    check_part(parser, options.only, (setting.name for setting in HALF_SETTINGS), options.out)
    if options.out is None and instructions() != "amx":
        print(f"this machine has no AMX ({instructions()}): {RESULTS / 'half.json'} stays")
        return
    settings = [one for one in HALF_SETTINGS if not options.only or one.name in options.only]
    result = measure_settings(settings)
    out = options.out or RESULTS / "half.json"
    save(out, result)
    print(f"wrote {out}")
    print(verdict(result, HALF_TARGETS))


if __name__ == "__main__":
    main()
