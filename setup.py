"""Builds relpos, with its compiled kernel where torch's headers and a C++ compiler are found.

The kernel (`csrc/`) knows torch by its stable C++ interface alone, and Python not at all: one
binary runs with every torch from 2.11 and every Python from 3.11. Where it cannot be built relpos
is installed without it, and `relpos.backends()` gives the reason, which lies in `missing.txt`.

`RELPOS_BUILD_NATIVE=0` leaves the kernel out; `RELPOS_BUILD_NATIVE=1` makes its failure an error.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

OLDEST_TORCH = (2, 11)
REASON = "missing.txt"
AGAIN = "then install relpos again with pip's --force-reinstall --no-deps --no-cache-dir"
WANTED = os.environ.get("RELPOS_BUILD_NATIVE", "")


class BuildKernel(build_ext):
    """Puts the kernel into its package, or in its place the reason why it is not there."""

    def build_extension(self, ext: Extension) -> None:
        """Compiles; an error ends the build unless the extension is optional.

        Raises:
            CompileError: with the reason in one line.
        """
        kernel = Path(self.get_ext_fullpath(ext.name))
        reason = kernel.with_name(REASON)
        for old in (kernel, reason):
            old.unlink(missing_ok=True)
        kernel.parent.mkdir(parents=True, exist_ok=True)
        try:
            compile_kernel(ext.sources, kernel)
        except CompileError as error:
            reason.write_text(f"{error}\n", encoding="utf-8")
            raise

    def copy_extensions_to_source(self) -> None:
        """In an editable install, the same two files beside the sources."""
        for ext in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(ext.name))
            source = Path(self.get_ext_fullpath(ext.name))
            for new, old in ((built, source), (built.with_name(REASON), source.with_name(REASON))):
                # Not overwritten: a running process may have it mapped.
                old.unlink(missing_ok=True)
                if new.exists():
                    shutil.copyfile(new, old)


def compile_kernel(sources: list[str], kernel: Path) -> None:
    """Compiles the sources side by side and links them; CXXFLAGS and LDFLAGS come after our flags.

    Raises:
        CompileError: with the reason in one line.
    """
    if WANTED == "0":
        raise CompileError("relpos was built with RELPOS_BUILD_NATIVE=0, without its kernel")
    torch = find_torch()
    major, minor = OLDEST_TORCH
    compiler = [
        *find_compiler(),
        *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden"),
        f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000",
        *("-isystem", str(torch / "include")),
        *deployment_target(),
        *shlex.split(os.environ.get("CXXFLAGS", "")),
    ]
    with TemporaryDirectory() as folder:
        objects = [str(Path(folder, f"{Path(source).stem}.o")) for source in sources]
        with ThreadPoolExecutor(count_jobs()) as pool:
            begun = [
                pool.submit(run_compiler, [*compiler, "-c", source, "-o", compiled])
                for source, compiled in zip(sources, objects, strict=True)
            ]
            try:
                for one in begun:
                    one.result()
            except CompileError:
                pool.shutdown(cancel_futures=True)
                raise
        # torch is found by name when the kernel is loaded: it has been imported before.
        libraries = (f"-L{torch / 'lib'}", "-ltorch_cpu", "-Wl,-S")
        last = shlex.split(os.environ.get("LDFLAGS", ""))
        run_compiler([*compiler, "-shared", *objects, *libraries, *last, "-o", str(kernel)])


def count_jobs() -> int:
    """How many sources are compiled at a time: MAX_JOBS, as torch's builds have it, or a core each.

    Raises:
        CompileError: if MAX_JOBS is no such number.
    """
    given = os.environ.get("MAX_JOBS", "")
    if not given:
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if not given.isdecimal() or not int(given):
        raise CompileError(f"MAX_JOBS must be the number of compilers at a time, got {given!r}")
    return int(given)


def run_compiler(command: list[str]) -> None:
    """Runs it, and shows the command and what it says.

    Raises:
        CompileError: with its last error.
    """
    print(shlex.join(command), flush=True)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    print(done.stderr, file=sys.stderr, flush=True)
    if done.returncode:
        raise CompileError(f"relpos's kernel did not compile: {last_error(done.stderr)}")


def find_torch() -> Path:
    """The folder of the torch that relpos is going to run with, or of one with the same interface.

    Raises:
        CompileError: if there is none, or none that is new enough.
    """
    torch = next(
        (path / "torch" for path in packages() if (path / "torch/version.py").exists()), None
    )
    if torch is None:
        raise CompileError(
            f"no torch was found to build relpos's kernel for: install torch, {AGAIN} "
            "(other installers hide torch unless given --no-build-isolation)"
        )
    found = re.search(r"__version__ = '((\d+)\.(\d+)[^']*)'", (torch / "version.py").read_text())
    if found and (int(found[2]), int(found[3])) < OLDEST_TORCH:
        raise CompileError(
            f"torch {found[1]} is too old for relpos's kernel: install torch "
            f"{'.'.join(map(str, OLDEST_TORCH))} or newer, {AGAIN}"
        )
    if not (torch / "include/torch/csrc/stable/library.h").exists():
        raise CompileError("the torch beside relpos has no C++ headers to build its kernel with")
    return torch


def packages() -> list[Path]:
    """Where packages are looked for, and where pip hides them while it builds in isolation.

    pip then takes the interpreter's own folders from `sys.path`, but `sysconfig` still names them.
    """
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    own = [sysconfig.get_path(kind) for kind in ("platlib", "purelib")]
    shared = [sysconfig.get_path(kind, vars=base) for kind in ("platlib", "purelib")]
    return [Path(path) for path in (*sys.path, *own, site.getusersitepackages(), *shared)]


def find_compiler() -> list[str]:
    """The compiler that CXX names (with arguments, perhaps), else the machine's.

    Raises:
        CompileError: if it is not there.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    raise CompileError(
        f"no {named[0] if named else 'C++ compiler'} was found to build relpos's kernel with: "
        f"install g++ or clang++, or name another compiler in CXX, {AGAIN}"
    )


def deployment_target() -> list[str]:
    """On macOS the oldest system to run on, as the wheel's tag says it."""
    target = sysconfig.get_config_var("MACOSX_DEPLOYMENT_TARGET")
    if not target or "MACOSX_DEPLOYMENT_TARGET" in os.environ:
        return []
    return [f"-mmacosx-version-min={target}"]


def last_error(text: str) -> str:
    """The last line of a compiler's output that speaks of an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "error" in line), (lines or ["no output"])[-1])


kernel = Extension(
    "relpos.ops.native._kernel",
    sources=sorted(str(path) for path in Path("csrc").glob("*.cpp")),
    py_limited_api=True,
    optional=WANTED != "1",
)
# Free-threaded Pythons have no stable ABI; relpos does not use it, but wheels' tags name it.
tag = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"py_limited_api": "cp311"}

setup(ext_modules=[kernel], cmdclass={"build_ext": BuildKernel}, options={"bdist_wheel": tag})
