"""What is installed: the wheel in an empty environment, and relpos without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.no_typecheck]

ROOT = Path(__file__).parent.parent
PACKAGES = sysconfig.get_path("purelib")
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
# What is imported is to be what was installed.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
# Quickly compiled. An optimised kernel is what all other tests run, and `make wheel` looks at the
# one that is shipped.
NOT_OPTIMISED = {"CXXFLAGS": f"{os.environ.get('CXXFLAGS', '')} -O0"}
needs_compiler = pytest.mark.skipif(not COMPILER, reason="needs a C++ compiler")

FORWARD_AND_BACKWARD = """
import torch
from relpos import attention
from relpos.positions import Shaw

def gradients(backend):
    torch.manual_seed(0)
    position = Shaw(8, max_distance=3)
    q, k, v = (torch.randn(2, 3, 33, 8, requires_grad=True) for _ in range(3))
    output = attention(*position(q, k)[:2], v, position(q, k)[2], causal=True, backend=backend)
    return output, *torch.autograd.grad(output.sin().sum(), (q, k, v, *position.parameters()))

for native, reference in zip(gradients("native"), gradients("reference"), strict=True):
    torch.testing.assert_close(native, reference)
"""

# What pip does in a build with isolation: the interpreter's own packages are not to be imported.
HIDE_PACKAGES = """
import sys, sysconfig
own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
sys.path = [path for path in sys.path if path not in own]
"""


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(sources: Path, folder: Path, **variables: str) -> zipfile.ZipFile:
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run(sys.executable, "-c", code, folder, cwd=sources, **variables)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A copy of what relpos is built from, for builds leave traces beside it."""
    folder = tmp_path_factory.mktemp("sources")
    leave = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.so", "missing.txt")
    for name in ("src", "csrc", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def python(tmp_path) -> Path:
    """An interpreter without relpos that has this environment's other packages.

    relpos's editable install is a `.pth` file, and those are not followed from one to the next.
    """
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(own, "others.pth").write_text(PACKAGES)
    return python


def install(python: Path, what: Path, **variables: str) -> None:
    offline = ("--ignore-installed", "--no-index", "--no-deps", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, what, **variables)
    where = run(python, "-c", "import relpos; print(relpos.__file__)", cwd=python.parent)
    assert Path(where).is_relative_to(python.parent.parent)


@needs_compiler
@pytest.mark.costly(1, of="wheels")
def test_the_wheel_runs_in_an_empty_environment(sources, python, tmp_path):
    run(
        sys.executable, "-m", "scripts.build_wheel", tmp_path / "dist", cwd=sources, **NOT_OPTIMISED
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    install(python, wheel)
    run(python, "-c", FORWARD_AND_BACKWARD, cwd=tmp_path)


@needs_compiler
@pytest.mark.costly(1, of="wheels")
def test_the_kernel_is_built_where_pip_hides_torch(sources, tmp_path):
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "sitecustomize.py").write_text(HIDE_PACKAGES)
    for package in Path(PACKAGES).glob("setuptools*"):
        (overlay / package.name).symlink_to(package)
    variables = {"RELPOS_BUILD_NATIVE": "1", **NOT_OPTIMISED}
    wheel = build_wheel(sources, tmp_path, PYTHONPATH=str(overlay), **variables)
    assert "relpos/ops/native/_kernel.abi3.so" in wheel.namelist()


def test_the_wheel_says_that_both_packages_are_typed_and_has_every_template(sources, tmp_path):
    names = build_wheel(sources, tmp_path, RELPOS_BUILD_NATIVE="0").namelist()
    templates = (ROOT / "src").rglob("*.html")
    needed = {str(path.relative_to(ROOT / "src")) for path in templates}
    assert len(needed) > 5
    assert needed | {"relpos/py.typed", "relpos_tasks/py.typed"} <= set(names)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CXX": "no-such-compiler"}, "no no-such-compiler was found"),
        ({"CXXFLAGS": "-include no-such-header.h"}, "did not compile: .* no-such-header.h"),
        ({"RELPOS_BUILD_NATIVE": "0"}, "RELPOS_BUILD_NATIVE=0"),
        ({"MAX_JOBS": "all"}, "MAX_JOBS must be the number of compilers at a time, got 'all'"),
    ],
)
@pytest.mark.costly(1, of="wheels")
def test_relpos_installs_without_its_kernel_and_says_why(sources, python, variables, reason):
    if {"CXXFLAGS", "MAX_JOBS"} & set(variables) and not COMPILER:
        pytest.skip("needs a C++ compiler")
    install(python, sources, **variables)
    code = f"""
import re, relpos, torch
assert re.search({reason!r}, relpos.backends()["native"]), relpos.backends()
q = torch.randn(1, 1, 5, 4)
relpos.attention(q, q, q)
"""
    run(python, "-c", code, cwd=python.parent)


def test_a_kernel_that_must_be_built_ends_the_build(sources, tmp_path):
    with pytest.raises(AssertionError, match="no no-such-compiler was found"):
        build_wheel(sources, tmp_path, CXX="no-such-compiler", RELPOS_BUILD_NATIVE="1")
