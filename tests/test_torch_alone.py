"""An environment with torch and jaxtyping alone: what runs there, and what says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.no_typecheck

# Python finds no package of which `sys.modules` says None.
HIDE = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:]))"
RUN = """
import relpos
import torch
from relpos.positions import Shaw
q = torch.randn(1, 2, 5, 8, requires_grad=True)
for backend in ("auto", "tiled", "reference"):
    _, _, terms = Shaw(8, 2)(q, q)
    relpos.attention(q, q, q, terms, causal=True, backend=backend).sum().backward()
assert "numpy" not in sys.modules or sys.modules["numpy"] is None
"""


def run(code: str, *hidden: str) -> subprocess.CompletedProcess[str]:
    """What a fresh process does with `code` where packages are hidden from it."""
    return subprocess.run(
        [sys.executable, "-c", f"{HIDE}\n{code}", *hidden],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_the_op_and_its_schemes_run_without_numpy_and_print_nothing():
    done = run(RUN, "numpy", "matplotlib", "lightning", "typer")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("definition", "numpy", "definition"),
        ("plots", "numpy", "plots"),
        ("plots", "matplotlib", "plots"),
    ],
)
@pytest.mark.costly(1)
def test_a_module_that_needs_more_names_the_package_and_the_extra(
    module: str, missing: str, extra: str
):
    done = run(f"import relpos.{module}", missing)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    words = f"relpos.{module}: {missing} must be installed: pip install 'relpos[{extra}]'"
    assert last == f"ModuleNotFoundError: {words}"
