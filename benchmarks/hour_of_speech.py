"""An hour of speech through a full-size encoder, on one process and cut among several: peak memory.

`examples/one_hour_of_speech.py`, as a user starts it: one process with all threads, several with
one thread each. Each run is saved when it is over, beside those of other sizes. What else runs on
the machine does not matter for memory; time is not kept.

    python -m benchmarks.hour_of_speech
    python -m benchmarks.hour_of_speech --processes 2
    python -m benchmarks.hour_of_speech --frames 11250
    python -m benchmarks.hour_of_speech --frames 500 --layers 2 --width 128 --out some.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .files import RESULTS, ROOT, save
from .measure.machine import machine

EXAMPLE = ROOT / "examples" / "one_hour_of_speech.py"
FRAMES, LAYERS, WIDTH = 45_000, 24, 1024


def measure(processes: int, frames: int, layers: int, width: int) -> dict:
    """What the example writes, with the machine and the commit.

    Args:
        processes: among which the frames are cut.
        frames: of 80 ms.
        layers: of the encoder.
        width: of the encoder.

    Raises:
        RuntimeError: if it fails.
    """
    found = machine()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    # glibc gives back at once what is larger than this: what is free does not count.
    environment = os.environ | dict.fromkeys(
        ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "65536"
    )
    if processes > 1:
        environment["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, *(torchrun if processes > 1 else []), str(EXAMPLE)]
        command += [f"--frames={frames}", f"--layers={layers}", f"--width={width}", f"--json={out}"]
        status = subprocess.run(command, env=environment, check=False).returncode
        if status:
            raise RuntimeError(f"the example must end with 0, got {status}")
        figures = json.loads(out.read_text()) | {"machine": found}
    del figures["minutes"]
    return figures


def _sizes(row: dict) -> tuple[int, ...]:
    return row["frames"], row["layers"], row["width"], row["processes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="each a run (1 2)")
    parser.add_argument("--frames", type=int, default=FRAMES, help=f"of 80 ms ({FRAMES})")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of the encoder ({LAYERS})")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"of the encoder ({WIDTH})")
    parser.add_argument("--out", type=Path, help="benchmarks/results/hour_of_speech.json")
    options = parser.parse_args()
    if min(options.processes) < 1:
        parser.error(f"--processes: must be at least 1, got {min(options.processes)}")
    sizes = options.frames, options.layers, options.width
    if options.out is None and sizes[1:] != (LAYERS, WIDTH):
        parser.error("--out: must be given with another encoder, whose result is another")
    if options.out is not None and (options.out.is_dir() or not options.out.parent.is_dir()):
        parser.error(f"--out: must be a file in a folder that is there, got {options.out}")
    out = options.out or RESULTS / "hour_of_speech.json"
    result: dict = {"rows": []}
    try:
        result = dict(json.loads(out.read_text())) if out.exists() else result
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"--out: {out} must hold an earlier result, got {error}")
    for processes in options.processes:
        try:
            row = measure(processes, *sizes)
        except RuntimeError as error:
            parser.error(f"--processes {processes}: {error}")
        others = [each for each in result.get("rows", []) if _sizes(each) != _sizes(row)]
        result["rows"] = sorted([*others, row], key=_sizes)
        save(out, result)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
