"""The page says what the tests show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "ecosystem.md").read_text()


def test_every_row_of_the_page_names_its_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| what |")]
    assert rows
    assert not [row for row in rows if "`test_" not in row]


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")
@pytest.mark.filterwarnings("ignore:# The axis name. held will not be used:UserWarning")
def test_the_pages_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/ecosystem.md", "exec"), {})
    assert {"block.onnx", "step.onnx"} <= {path.name for path in tmp_path.iterdir()}
