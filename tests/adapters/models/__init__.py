"""Small models of each adapted family, one file a family: `CASES`, and the same `BY_NAME`."""

import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from .case import Case

FILES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "case")
)
# The first transformers that has the classes of all files.
NEWEST = (5, 24)


def _cases(file: str) -> list[Case]:
    try:
        return import_module(f"{__name__}.{file}").CASES
    except ImportError as error:
        found = tuple(map(int, re.findall(r"\d+", version("transformers"))[:2]))
        if found >= NEWEST or not (error.name or "").startswith("transformers"):
            raise
        return []


CASES: list[Case] = [case for file in FILES for case in _cases(file)]
BY_NAME = {case.name: case for case in CASES}
