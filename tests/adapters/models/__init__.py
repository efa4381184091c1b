"""Small models of each adapted family, one file a family: `CASES`, and the same `BY_NAME`."""

from importlib import import_module
from pathlib import Path

from .case import Case

FILES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "case")
)
CASES: list[Case] = [case for file in FILES for case in import_module(f"{__name__}.{file}").CASES]
BY_NAME = {case.name: case for case in CASES}
