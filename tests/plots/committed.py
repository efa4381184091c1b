"""Pictures in the documents against what is drawn now."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from matplotlib.figure import Figure

from relpos.plots import image_bytes

ROOT = Path(__file__).parents[2]


def assert_committed(name: str, figure: Figure) -> None:
    """The SVG of that name in docs/ is this figure."""
    committed = (ROOT / "docs" / name).read_bytes()
    drawn = image_bytes(figure, ".svg")
    # matplotlib writes what each text says beside its letters' shapes.
    said = re.compile(rb"<!-- (.*?) -->")
    assert said.findall(committed) == said.findall(drawn)
    # Other versions place letters elsewhere.
    pinned = (ROOT / "constraints.txt").read_text()
    if f"matplotlib=={version('matplotlib')}\n" in pinned:
        assert committed == drawn
