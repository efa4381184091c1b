"""Imports in `src` make no circle and go down the order of docs/design.md, wherever they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_design import ASIDE, order

SRC = Path(__file__).parent.parent / "src"
Graph = dict[str, set[str]]


def imports_in(src: Path) -> Graph:
    """The modules below a folder that each module there imports, in functions and for types too."""
    paths = {_module(path.relative_to(src)): path for path in src.rglob("*.py")}
    return {
        name: {found for found in _imported(name, path, set(paths)) if found != name}
        for name, path in paths.items()
    }


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, path: Path, known: set[str]) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            targets = {
                module if (module := f"{base}.{alias.name}") in known else base
                for alias in node.names
            }
            yield from targets & known


def circle_in(graph: Graph) -> list[str]:
    """Modules that import each other in a ring, the first one again at the end; [] if none do."""
    finished: set[str] = set()

    def visit(name: str, above: list[str]) -> list[str]:
        if name in above:
            return [*above[above.index(name) :], name]
        if name in finished:
            return []
        for other in sorted(graph[name]):
            if ring := visit(other, [*above, name]):
                return ring
        finished.add(name)
        return []

    return next((ring for name in sorted(graph) if (ring := visit(name, []))), [])


def against_the_order(graph: Graph) -> list[str]:
    """The imports that go up, as `importer -> imported`."""
    return [
        f"{name} -> {other}"
        for name in sorted(graph)
        for other in sorted(graph[name])
        if not _may_import(name, other)
    ]


def _may_import(name: str, other: str) -> bool:
    (package, row), (other_package, other_row) = _place(name), _place(other)
    if package != other_package:
        return package == "relpos_tasks" or name == "relpos.__main__"
    return other_row <= row


def _place(name: str) -> tuple[str, int]:
    """The package, and the row of its order in which the module's part stands."""
    package, _, rest = name.partition(".")
    part = rest.partition(".")[0]
    # What lies beside the order needs nothing but, for the double loops, the checks of inputs.
    rows = [sorted(ASIDE - {"definition", "__main__"}), *order(package)]
    # relpos/__init__.py has everything of the library, that of relpos_tasks nothing.
    rows += [["definition", ""], ["__main__"]] if package == "relpos" else [["__main__"]]
    places = [number for number, row in enumerate(rows) if part in row]
    assert places or not part, f"{name} has no place in the order of docs/design.md"
    return package, places[0] if places else 0


def test_no_modules_of_src_import_each_other_in_a_circle():
    assert circle_in(imports_in(SRC)) == []


def test_every_import_of_src_goes_down_the_order():
    assert against_the_order(imports_in(SRC)) == []


@pytest.fixture
def tree(tmp_path):
    """Writes files below a folder and returns what they import."""

    def write(**sources):
        for name, source in sources.items():
            path = tmp_path / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return imports_in(tmp_path)

    return write


@pytest.mark.parametrize(
    "back",
    [
        "from .page import table",
        "from . import page",
        "from relpos.page import table",
        "import relpos.page",
        "def later():\n    from .page import table",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .page import table",
    ],
)
def test_a_circle_is_found_however_it_is_written(tree, back):
    graph = tree(relpos__in__page="from .compare import results", relpos__in__compare=back)
    assert circle_in(graph) == ["relpos.compare", "relpos.page", "relpos.compare"]


def test_two_ways_to_one_module_are_no_circle(tree):
    graph = tree(
        relpos__in__top="from . import left, right",
        relpos__in__left="from . import base",
        relpos__in__right="from . import base",
        relpos__in__base="import os",
    )
    assert circle_in(graph) == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("relpos.ops.api", "relpos.layers.blocks"),
        ("relpos.plots.rows", "relpos_tasks.models"),
        ("relpos.errors", "relpos"),
        ("relpos_tasks.report.page", "relpos_tasks.music"),
        ("relpos_tasks.machine", "relpos_tasks.training.checkpoint"),
    ],
)
def test_an_import_against_the_order_is_found(importer, imported):
    assert against_the_order({importer: {imported}}) == [f"{importer} -> {imported}"]


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("relpos.layers.blocks", "relpos.ops"),
        ("relpos_tasks.models", "relpos.plots.rows"),
        ("relpos_tasks.cli.plot", "relpos_tasks.files"),
        ("relpos.__main__", "relpos_tasks.cli"),
    ],
)
def test_an_import_down_the_order_is_none_against_it(importer, imported):
    assert against_the_order({importer: {imported}}) == []
