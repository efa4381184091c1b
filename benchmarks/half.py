"""What matrix units are for: bfloat16, float16, and float32 where it may be split.

The op beside plain SDPA in the same dtype; layers of adapted models in bfloat16 beside their
originals; an hour of speech; and float16 with relpos kept from AMX, by AVX-512 alone. Processors
with AMX have paths of their own, in torch as in relpos, so that the ratios of such a machine say
nothing about another: on one without AMX the committed result stays, unless `--out` names another.

    python -m benchmarks.half
    python -m benchmarks.half --parts long
    python -m benchmarks.half --only "bfloat16, d=64" --parts time --out some.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from relpos.ops.native.library import instructions

from .files import RESULTS, ROOT, save
from .measure.adapted import measure_time
from .measure.long_inputs import measure_long
from .measure.machine import machine
from .measure.passes import measure_settings
from .options import check_part
from .report.targets import HALF_TARGETS, verdict
from .workloads.adapted import HALF_LONG_INPUTS, HALF_MODELS, find_model
from .workloads.settings import HALF_SETTINGS

PARTS = ("time", "adapted", "long", "vectors")

# What keeps relpos, and torch's own kernels, from instructions beyond AVX-512. Not oneDNN, by which
# torch multiplies float16: without AMX it would take ten times as long.
AVX512_ALONE = {"ATEN_CPU_CAPABILITY": "avx512"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="benchmarks/results/half.json")
    parser.add_argument("--only", nargs="+", help="names of settings, with --out (all)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    check_part(parser, options.only, (setting.name for setting in HALF_SETTINGS), options.out)
    if options.out is None and instructions() != "amx":
        print(f"this machine has no AMX ({instructions()}): {RESULTS / 'half.json'} stays")
        return
    settings = [one for one in HALF_SETTINGS if not options.only or one.name in options.only]
    out = options.out or RESULTS / "half.json"
    result: dict[str, Any] = {"time": [], "memory": []}
    if out.exists():
        result = json.loads(out.read_text())
    result["machine"] = machine() | {"instructions": instructions()}
    commits = result.setdefault("commits", {})
    for part in options.parts:
        if part == "time":
            result |= measure_settings(settings)
        elif part == "adapted":
            for name in HALF_MODELS:
                others = [row for row in result.get("adapted", []) if row["model"] != name]
                result["adapted"] = others + measure_time(find_model(name), dtype=torch.bfloat16)
                save(out, result)
        elif part == "long":
            result["long"] = [measure_long(one.name) for one in HALF_LONG_INPUTS]
        else:
            result["vectors"] = measure_vectors("float16, d=64")
        commits[part] = result["machine"]["commit"]
        save(out, result)
    print(f"wrote {out}")
    print(verdict(result, HALF_TARGETS))


def measure_vectors(setting: str) -> dict[str, Any]:
    """Time the schemes of a setting on AVX-512 alone, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "vectors.json"
        command = [sys.executable, "-m", "benchmarks.half", "--parts", "time"]
        subprocess.run(
            [*command, "--only", setting, "--out", str(out)],
            cwd=ROOT, env=os.environ | AVX512_ALONE, check=True,
        )  # fmt: skip
        return json.loads(out.read_text())


if __name__ == "__main__":
    main()
