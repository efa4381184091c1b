"""Keep a run of a task as a committed result: its metrics and its machine, in one JSON.

python -m benchmarks.chorales runs/chorales
python -m benchmarks.chorales runs/vision --name vision
python -m benchmarks.tables
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .files import RESULTS, save


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished `compare`")
    parser.add_argument("--name", default="chorales", help="of the result (chorales)")
    options = parser.parse_args()
    result = RESULTS / f"{options.name}.json"
    metrics, machine = (
        json.loads((options.run / name).read_text()) for name in ("metrics.json", "machine.json")
    )
    save(result, {"machine": machine} | metrics)
    print(f"wrote {result}")


if __name__ == "__main__":
    main()
