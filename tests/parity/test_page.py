"""The page about agreement is what was measured, of everything that is compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.parity.mistakes import MISTAKES
from tests.parity.oracles import COMPARISONS

ROOT = Path(__file__).parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "parity.json").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text()


@pytest.mark.no_typecheck
def test_the_page_is_what_the_json_says():
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.parity", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("rows", "registry"), [("comparisons", COMPARISONS), ("mistakes", MISTAKES)]
)
def test_the_json_has_every_comparison_as_it_is(rows, registry):
    measured = [{key: row.get(key) for key in registry[0].named()} for row in RESULT[rows]]
    named = [one.named() for one in registry]
    if f"torch=={torch.__version__.partition('+')[0]}\n" not in CONSTRAINTS:  # one of the user's
        for row in (*measured, *named):
            if row["package"] == "torch":
                del row["version"]
    assert measured == named, "run make parity"
