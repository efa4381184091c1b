"""How far relpos is from other implementations of the same formulas, and the page that says it.

The comparisons are those of `tests/parity`: outputs and all gradients from the same weights, the
largest difference over all cases. No figure of the page is typed by hand.

    python -m benchmarks.parity            # compares; writes results/parity.json, docs/parity.md
    python -m benchmarks.parity --page     # writes the page from the JSON
    python -m benchmarks.parity --check    # exits 1 if the page is not what the JSON says
"""

from __future__ import annotations

import argparse
import sys

from .files import RESULTS, ROOT, load, save
from .measure.machine import machine
from .report.parity_page import parity_page

RESULT = RESULTS / "parity.json"
PAGE = ROOT / "docs" / "parity.md"


def measured() -> dict:
    """All comparisons, each over all its cases, and the mistakes."""
    from tests.parity.comparison import compare
    from tests.parity.mistakes import MISTAKES
    from tests.parity.oracles import COMPARISONS

    rows = []
    for comparison in COMPARISONS:
        differences = [compare(comparison.run(**case)) for case in comparison.cases]
        rows.append(
            {
                **comparison.named(),
                "forward": max(difference.forward for difference in differences),
                "gradients": max(difference.gradients for difference in differences),
                "cases": len(comparison.cases),
            }
        )
        print(f"{rows[-1]['scheme']:16} {rows[-1]['implementation']:44} "
              f"{rows[-1]['forward']:.0e} {rows[-1]['gradients']:.0e}")  # fmt: skip
    mistakes = [{**mistake.named(), "difference": mistake.difference()} for mistake in MISTAKES]
    return {"machine": machine(), "comparisons": rows, "mistakes": mistakes}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--page", action="store_true", help="compare nothing; write the page")
    only.add_argument("--check", action="store_true", help="write nothing; exit 1 if it differs")
    options = parser.parse_args()
    if options.check:
        same = PAGE.read_text() == parity_page(load(RESULT.name))
        sys.exit(not same and "docs/parity.md is not what the JSON says: run make parity")
    if not options.page:
        save(RESULT, measured(), indent=2)
    PAGE.write_text(parity_page(load(RESULT.name)))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
