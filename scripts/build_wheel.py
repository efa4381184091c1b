"""Builds the source distribution and, from it, the wheel; checks what the wheel's kernel links to.

    python -m scripts.build_wheel [FOLDER]     # dist/ unless another folder is named

The kernel must use nothing but torch's stable C interface and the system's own libraries: only then
does one wheel run with every torch from 2.11 and every Python from 3.11. What is needed of the
system (glibc, libstdc++) is printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
KERNEL = "relpos/ops/native/_kernel.abi3.so"
LIBRARIES = re.compile(r"(libtorch_cpu|libc10|libstdc\+\+|libm|libgcc_s|libc|ld-linux[\w-]*)\.so.*")
# C++ names of torch change from release to release, and names of Python from minor to minor.
UNSTABLE = re.compile(r"_ZNK?(2at|3c10|5torch)|_?Py[A-Z_]")


def main() -> None:
    """Builds, checks, and prints what was built."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist")
    sources, wheel = build(folder)
    check_sources(sources)
    check_wheel(wheel)
    print(f"{sources}\n{wheel}")


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution and the wheel, alone of their kind in the folder."""
    for pattern in ("relpos-*.tar.gz", "relpos-*.whl"):
        for old in folder.glob(pattern):
            old.unlink()
    # Without isolation, because `build` would hide torch; what is needed comes with `.[dev]`.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, "RELPOS_BUILD_NATIVE": "1"})
    (sources,), (wheel,) = folder.glob("relpos-*.tar.gz"), folder.glob("relpos-*.whl")
    return sources, wheel


def check_sources(sources: Path) -> None:
    """The source distribution has the kernel's sources, and nothing that was compiled."""
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = {f"csrc/{path.name}" for path in (ROOT / "csrc").iterdir()} - names
    require(not missing, f"{sources.name}: there must be {sorted(missing)}")
    compiled = [name for name in names if name.endswith((".so", ".pyd", "missing.txt"))]
    require(not compiled, f"{sources.name}: there must be no {compiled}")


def check_wheel(wheel: Path) -> None:
    """The wheel is for every Python, and its kernel links to what every machine has."""
    require("-cp311-abi3-" in wheel.name, f"{wheel.name}: the tag must be cp311-abi3")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        require(KERNEL in archive.namelist(), f"{wheel.name}: there must be {KERNEL}")
        if sys.platform == "linux":
            check_kernel(Path(archive.extract(KERNEL, folder)))


def check_kernel(kernel: Path) -> None:
    """The libraries, paths and symbols that the kernel asks the dynamic linker for."""
    dynamic = read_elf("--dynamic", kernel)
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    foreign = [name for name in libraries if not LIBRARIES.fullmatch(name)]
    require(
        "libtorch_cpu.so" in libraries, f"the kernel must link to libtorch_cpu, got {libraries}"
    )
    require(not foreign, f"the kernel must not link to {foreign}")
    require("PATH)" not in dynamic, "the kernel must have no RPATH or RUNPATH")

    symbols = re.findall(r" UND (\S+)", read_elf("--dyn-syms", kernel))
    unstable = [name for name in symbols if UNSTABLE.match(name)]
    require(not unstable, f"the kernel must not use {unstable}")
    print("The kernel links to", ", ".join(libraries))
    for library in ("GLIBC", "GLIBCXX"):
        versions = re.findall(rf"@{library}_([\d.]+)", " ".join(symbols))
        newest = max(versions, key=lambda version: [int(part) for part in version.split(".")])
        print(f"and needs {library} {newest} or newer")


def read_elf(question: str, kernel: Path) -> str:
    """What readelf (of binutils, which come with the compiler) says of the kernel."""
    command = ["readelf", "--wide", question, str(kernel)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def require(right: bool, otherwise: str) -> None:
    """Ends the program with what is wrong."""
    if not right:
        sys.exit(f"build_wheel: {otherwise}")


if __name__ == "__main__":
    main()
