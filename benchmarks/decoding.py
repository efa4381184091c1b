"""Steps of decoding on the CPU, beside plain SDPA in the same dtype.

Each dtype is saved when it is measured; with `--dtypes` some are measured again, and the others
stay.

    python -m benchmarks.decoding
    python -m benchmarks.decoding --dtypes bfloat16 float16
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .files import RESULTS, save
from .measure.passes import measure_settings
from .options import check_out
from .report.targets import DECODING_TARGETS, verdict
from .workloads.settings import DECODING_SETTINGS

DTYPES = tuple(dict.fromkeys(setting.dtype for setting in DECODING_SETTINGS))


def merged(old: dict, new: dict) -> dict:
    """A result with the settings of a new one in the place of older ones, all in their order."""
    settings = old["settings"] | new["settings"]
    rows = [row for row in old["time"] if row["setting"] not in new["settings"]] + new["time"]
    names = [setting.name for setting in DECODING_SETTINGS if setting.name in settings]
    return new | {
        "settings": {name: settings[name] for name in names},
        "time": [row for name in names for row in rows if row["setting"] == name],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="(all)")
    parser.add_argument("--out", type=Path, default=RESULTS / "decoding.json")
    options = parser.parse_args()
    check_out(parser, options.out)
    result = {"settings": {}, "time": []}
    if options.out.exists():
        result = json.loads(options.out.read_text())
    for dtype in options.dtypes:
        measured = measure_settings(one for one in DECODING_SETTINGS if one.dtype == dtype)
        result = merged(result, measured)
        save(options.out, result)
    print(f"wrote {options.out}")
    print(verdict(result, DECODING_TARGETS))


if __name__ == "__main__":
    main()
