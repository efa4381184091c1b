"""Keep a run of the main job as a committed result: its metrics and its machine, in one JSON.

python benchmarks/chorales.py runs/chorales
python benchmarks/tables.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished `relpos music compare`")
    parser.add_argument("--name", default="chorales", help="of the result (chorales)")
    options = parser.parse_args()
    folder, result = options.run, RESULTS / f"{options.name}.json"
    metrics, machine = (
        json.loads((folder / name).read_text()) for name in ("metrics.json", "machine.json")
    )
    RESULTS.mkdir(exist_ok=True)
    result.write_text(json.dumps({"machine": machine} | metrics, indent=1) + "\n")
    print(f"wrote {result}")


if __name__ == "__main__":
    main()
