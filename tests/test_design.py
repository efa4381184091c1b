"""What docs/design.md says of the layout: its folders are there, and some keep its orders.

`test_imports.py` holds `src` against those of its packages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DESIGN = (ROOT / "docs" / "design.md").read_text()
LIBRARY = ROOT / "src" / "relpos"
BENCHMARKS = ROOT / "benchmarks"
# Beside the order: the double loops, torch, the version, and what hands over to the command.
ASIDE = {"definition", "_torch", "_version", "__main__"}


def order(package: str) -> list[list[str]]:
    """The page's line of a package: parts that may be imported by those to their right."""
    lines = re.findall(r"^    (\w[\w, ]*(?: <- [\w, ]+)+)$", DESIGN, flags=re.MULTILINE)
    top = {
        "benchmarks": "programs", "distributed": "context_parallel, state",
        "relpos": "relpos_tasks", "relpos_tasks": "cli",
    }[package]  # fmt: skip
    (line,) = [line for line in lines if line.endswith(f"<- {top}")]
    return [part.split(", ") for part in line.split(" <- ")]


def imports(folder: Path) -> list[tuple[str, str]]:
    """The part of a package that imports, and the part that is imported, for every import."""
    found = []
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        dots = r"\." * len(parts)
        for other in re.findall(rf"^\s*from {dots}(\w+)", path.read_text(), flags=re.MULTILINE):
            found.append((parts[0], other))
    return found


@pytest.mark.parametrize("folder", [BENCHMARKS, LIBRARY / "distributed"], ids=lambda x: x.name)
def test_imports_point_one_way(folder: Path):
    level = {part: number for number, parts in enumerate(order(folder.name)) for part in parts}
    pairs = [pair for pair in imports(folder) if set(pair) <= level.keys()]
    assert len(pairs) > 20
    assert [pair for pair in pairs if level[pair[1]] > level[pair[0]]] == []


def test_every_part_of_what_is_distributed_is_in_its_order():
    folder = LIBRARY / "distributed"
    parts = {path.stem for path in folder.iterdir() if not path.name.startswith("__")}
    assert parts == {part for row in order("distributed") for part in row}


def test_every_part_of_the_library_is_in_the_order():
    parts = {path.stem for path in LIBRARY.iterdir() if not path.name.startswith("__p")}
    stated = {part for parts in order("relpos") for part in parts} - {"relpos_tasks"}
    assert parts - {"__init__", "py"} - ASIDE == stated


def test_backends_never_import_each_other():
    backends, ops = {"native", "tiled", "triton", "reference"}, LIBRARY / "ops"
    paths = [
        path
        for path in ops.rglob("*.py")
        if backends & set(path.relative_to(ops).with_suffix("").parts)
    ]
    assert len(paths) > 20
    for path in paths:
        named = re.findall(r"^\s*from \.+(\w+)", path.read_text(), flags=re.MULTILINE)
        assert backends.isdisjoint(named), path


def test_the_folders_of_the_tree_exist():
    (tree,) = re.findall(r"```\n(src/relpos/.*?)```", DESIGN, flags=re.DOTALL)
    # A line begins with its folders; two or more spaces part them from what is said of them.
    begins = [re.split(r"\s{2,}", line.strip())[0] for line in tree.splitlines()]
    folders = [folder for begin in begins for folder in begin.split() if folder.endswith("/")]
    assert len(folders) > 15
    above = ("", "src/relpos", "src/relpos/ops", "src/relpos/distributed", "src/relpos_tasks")
    for folder in folders:
        assert any((ROOT / place / folder).is_dir() for place in above), folder
