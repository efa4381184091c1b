"""Keep a finished run of any task as a committed result: its machine and its metrics in one JSON.

It is to be kept where it was made: the commit that is noted is that of the moment.

python -m benchmarks.keep_run runs/chorales
python -m benchmarks.keep_run runs/chorales-of-today --name chorales
python -m benchmarks.keep_run runs/literature-seed-1 --name literature --add-seeds
python -m benchmarks.tables
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from relpos_tasks.report.comparing import MACHINE, METRICS

from .files import RESULTS, save
from .measure.machine import commit
from .seeds import with_seeds_of


def kept(run: Path) -> dict:
    """What is kept of a run.

    Args:
        run: its folder.

    Raises:
        ValueError: if it is no folder of a finished run.
    """
    parts = []
    for name in (MACHINE, METRICS):
        path = run / name
        try:
            part = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ValueError(
                f"run must be the folder of a finished `compare`, got {run}, whose {name} cannot "
                f"be read ({error.strerror})"
            ) from None
        except ValueError:
            raise ValueError(
                f"run must hold {name} as JSON, got something else in {path}"
            ) from None
        if not isinstance(part, dict):
            raise ValueError(f"run must hold an object in {name}, got a {type(part).__name__}")
        parts.append(part)
    machine, metrics = parts
    return {"machine": machine | {"commit": commit()}} | metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished `compare`")
    parser.add_argument("--name", help="of the result; that of the folder by default")
    parser.add_argument(
        "--add-seeds",
        action="store_true",
        help="to the result of that name: of the same comparison of music, with other seeds",
    )
    options = parser.parse_args()
    name = options.run.resolve().name if options.name is None else options.name
    if not name or Path(name).name != name or name.startswith("."):
        parser.error(
            f"argument --name: must be a file's name without slashes or a first dot, got {name!r}"
        )
    try:
        result = kept(options.run)
        path = RESULTS / f"{name}.json"
        if options.add_seeds:
            result = with_seeds_of(json.loads(path.read_text("utf-8")), result)
        save(path, result)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
