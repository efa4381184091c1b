"""Write the tables of the README and of docs, and three whole pages, from measured runs.

No figure there is typed by hand.

    python -m benchmarks.tables            # rewrites them
    python -m benchmarks.tables --check    # exits 1 if one of them is not what the JSON says
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .files import ROOT, has, load
from .report.adapters_page import adapters_page
from .report.benchmark_page import benchmark_page
from .report.documents import DOCUMENTS, filled, parts
from .report.league_page import league_files, league_page

PAGE = ROOT / "docs" / "benchmark.md"
ADAPTERS = ROOT / "docs" / "adapters.md"
LEAGUE = ROOT / "docs" / "league.md"


def league() -> str:
    """The page of the league, from the runs that were kept so far."""
    files = [file for file in league_files() if has(file)]
    return league_page(
        {file: load(file) for file in files}, load("steps.json") if has("steps.json") else None
    )


def pages() -> dict[Path, str]:
    """Every page as the results have it."""
    result, gpu_result = load("cpu.json"), load("cuda.json") if has("cuda.json") else None
    made = parts(result, gpu_result)
    documents = {ROOT / name: filled(name, (ROOT / name).read_text(), made) for name in DOCUMENTS}
    return documents | {
        PAGE: benchmark_page(
            result,
            load("choice.json"),
            load("training.json"),
            load("local.json"),
            load("half.json"),
            load("decoding.json"),
            load("generation.json"),
            load("small_calls.json"),
            (load("distributed.json"), load("hour_of_speech.json")),
            gpu_result,
            load("cuda_more.json") if has("cuda_more.json") else None,
        ),
        ADAPTERS: adapters_page(
            load("adapters.json"),
            load("attn_implementation.json"),
            load("gpu_adapters.json") if has("gpu_adapters.json") else None,
        ),
        LEAGUE: league(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if they differ")
    check = parser.parse_args().check
    try:
        made = pages()
    except ValueError as error:
        # Runs of the league that cannot stand in one table, or a document's markers.
        sys.exit(f"benchmarks.tables: {error}")
    for path, text in made.items():
        if not check:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} is not what the JSON says: run make bench")


if __name__ == "__main__":
    main()
