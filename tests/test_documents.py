"""What the documents show runs, and what they claim is what was measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from importlib.util import find_spec
from inspect import ismodule
from pathlib import Path
from typing import Any

import pytest
import torch

import relpos
from relpos import positions
from relpos.positions import Shaw

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DISTRIBUTED = (ROOT / "docs" / "distributed.md").read_text()
# Documents whose Python runs; in those of the second line a block goes on from the one before.
PAGES = ("README.md", "CONTRIBUTING.md", "docs/adapters.md")
IN_ORDER = ("docs/guide.md", "docs/local.md")
# What a block begins with that is for several processes.
TORCHRUN = "# torchrun --nproc-per-node "
# The other one has tests of its own, in tests/examples.
EXAMPLES = sorted(
    {*(ROOT / "examples").glob("*.py")} - {ROOT / "examples" / "one_hour_of_speech.py"}
)


# Of inductor.
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("page", PAGES + IN_ORDER)
def test_the_python_of_a_page_runs(page: str):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert blocks
    names = {}
    for block in blocks:
        if not block.startswith(TORCHRUN):
            exec(compile(block, page, "exec"), names if page in IN_ORDER else {})


def test_every_paper_that_is_cited_is_in_the_references():
    """By its authors and year, and the references have no other."""
    references = ROOT / "docs" / "references.md"
    rows = re.findall(
        r"^\| ([^|]+?(?:19|20)\d\d)(?: \([^|]+\))? \|", references.read_text(), flags=re.M
    )
    listed = set(rows)
    name = r"[A-Z][\w'-]+"
    cited = re.compile(
        rf"\b((?!What ){name}(?: (?:and|&) {name}|(?: {name})? et al\.)),? \(?((?:19|20)\d\d)\b"
    )
    sources = [
        path
        for folder in ("src/relpos", "src/relpos_tasks", "csrc", "docs", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".h", ".cpp") and path != references
    ]
    found, texts = set(), ""
    for source in (ROOT / "README.md", *sources):
        text = re.sub(r"\s*\n[\s#/]*", " ", source.read_text())
        found |= {f"{authors} {year}" for authors, year in cited.findall(text)}
        texts += text.replace("(", "").replace(",", "")
    assert found <= listed, sorted(found - listed)
    assert not (never := [each for each in sorted(listed) if each not in texts]), never


def test_schemes_learn_as_many_numbers_as_their_page_says():
    """And every scheme is there."""
    text = (ROOT / "docs" / "schemes.md").read_text()
    rows = re.findall(r"^\| `([A-Z][^`]+)` \|.*?\| `([^`|]+)` \|[^|]*\|[^|]*\|$", text, flags=re.M)
    assert len(rows) == len(re.findall(r"^\| `[A-Z]\w+\(", text, flags=re.M))
    letters = {"h": 4, "d": 8, "e": 32, "k": 5, "L": 20, "n": 6}
    names = {name: getattr(positions, name) for name in positions.__all__}
    for scheme, count in rows:
        parameters = eval(scheme, names | letters).parameters()
        assert sum(x.numel() for x in parameters) == eval(count, dict(letters)), scheme
    modules = {
        name for name, x in names.items() if isinstance(x, type) and issubclass(x, torch.nn.Module)
    }
    parts = {"BiasPosition", "Compose", "DebertaEmbedding", "Position"}
    assert modules - parts == {scheme.split("(")[0] for scheme, _ in rows}


def test_dilated_windows_are_the_masks_of_their_pairs():
    """Lines of every fourth token see what a dense mask leaves, and the same rows of tables."""
    text = (ROOT / "docs" / "local.md").read_text()
    start = "def apart(x, steps):"
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.S) if b.startswith(start))
    names: dict[str, Any] = vars(relpos) | {"torch": torch, "Shaw": Shaw}
    exec(compile(block.replace("2000", "200"), "docs/local.md", "exec"), names)

    def of_tokens(table: relpos.OffsetTable | None) -> relpos.OffsetTable:
        assert table is not None
        assert (table.first, table.rows.shape[1]) == (-16, 33)
        return relpos.OffsetTable(table.rows.repeat_interleave(4, 1), -64)

    offsets = torch.arange(200) - torch.arange(200)[:, None]
    terms = names["terms"]
    dense = relpos.attention(
        names["q"], names["k"], names["v"],
        relpos.Terms(keys=of_tokens(terms.keys), values=of_tokens(terms.values)),
        mask=((offsets % 4 == 0) & (offsets.abs() <= 64))[None, None],
    )  # fmt: skip
    torch.testing.assert_close(names["out"], dense, rtol=1e-5, atol=1e-5)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("page", [README, DISTRIBUTED], ids=["README", "distributed"])
@pytest.mark.costly(1)
def test_the_python_for_several_processes_runs(page: str, tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    blocks = [block for block in blocks if block.startswith(TORCHRUN)]
    assert blocks
    for block in blocks:
        (tmp_path / "this.py").write_text(block)
        result = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *block.split()[2:4],
             tmp_path / "this.py"],
            capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert result.returncode == 0, result.stderr


@pytest.mark.no_typecheck
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(path: Path):
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.no_typecheck
def test_the_readmes_tables_are_what_was_measured():
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.tables", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.no_typecheck
@pytest.mark.slow
def test_the_documents_are_a_site_with_every_public_name(tmp_path: Path):
    """Strictly: a link that leads nowhere, or a docstring with one, fails it."""
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    inventory = (tmp_path / "objects.inv").read_bytes().split(b"\n", 4)[4]
    names = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    for package in (relpos, relpos.positions, relpos.layers, relpos.adapters):
        documented = {name for name in package.__all__ if not ismodule(getattr(package, name))}
        missing = {f"{package.__name__}.{name}" for name in documented - {"__version__"}} - names
        assert missing == set()


def test_modules_that_the_documents_run_exist():
    pages = (*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), ROOT / "Makefile")
    named = {
        module
        for page in pages
        for module in re.findall(r"-m ((?:benchmarks|scripts)[\w.]*)", page.read_text())
    }
    assert named
    assert {module for module in named if find_spec(module) is None} == set()


@pytest.mark.no_typecheck
def test_importing_relpos_needs_only_torch_and_jaxtyping():
    """In a fresh process nothing else is loaded for it, and it computes."""
    script = """
import sys
import jaxtyping, torch
before = set(sys.modules)
import relpos, relpos_tasks
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
others = loaded - set(sys.stdlib_module_names) - {"relpos", "relpos_tasks", "torch"}
assert not others, others
q = torch.randn(1, 2, 5, 8)
q, k, terms = relpos.positions.Shaw(8, 2)(q, q)
assert relpos.attention(q, k, k, terms).shape == q.shape
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", ["traps", "ecosystem", "parity"])
def test_every_test_that_a_page_names_exists(page):
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / f"{page}.md").read_text()))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = {name for name in named if f"def {name}(" not in sources}
    assert named
    assert not missing
