"""Keep a run of the main job as a committed result: its metrics and its machine, in one JSON.

python benchmarks/chorales.py runs/chorales
python benchmarks/tables.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "chorales.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished `relpos compare`")
    folder = parser.parse_args().run
    metrics, machine = (
        json.loads((folder / name).read_text()) for name in ("metrics.json", "machine.json")
    )
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"machine": machine} | metrics, indent=1) + "\n")
    print(f"wrote {RESULT}")


if __name__ == "__main__":
    main()
