"""The compiled kernel against its definition, for random calls under the compiler's sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .compiler import compiler

pytestmark = [pytest.mark.slow, pytest.mark.no_typecheck]

ROOT = Path(__file__).parents[2]
KERNELS = sorted((ROOT / "csrc").glob("kernel_*.cpp"))


def build(folder: Path, *sanitize: str) -> Path:
    """The fuzz program, its kernels with the sanitizer; two files at a time."""
    command = [*compiler(), "-std=c++17", "-g1", "-pthread", "-Wall", "-Wextra"]
    # What judges the kernels runs at full speed; its memory is watched all the same.
    flags = {ROOT / "tests/native/fuzz.cpp": ["-O2"]} | {
        kernel: ["-O1", "-Wno-psabi", *sanitize] for kernel in KERNELS
    }
    waiting = [
        [*command, *some, "-c", str(source), "-o", str(folder / f"{source.stem}.o")]
        for source, some in flags.items()
    ]
    for two in (waiting[:2], waiting[2:4], waiting[4:]):
        running = [subprocess.Popen(one, stderr=subprocess.PIPE, text=True) for one in two]
        for process in running:
            _, warnings = process.communicate()
            assert process.returncode == 0, warnings
            assert not warnings, warnings
    objects = [str(folder / f"{source.stem}.o") for source in flags]
    program = folder / "fuzz"
    linked = subprocess.run(
        [*command, *sanitize, *objects, "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert linked.returncode == 0, linked.stderr
    return program


def check(program: Path, *arguments: str) -> None:
    """Run it: it says nothing, or which call went wrong."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"returned {done.returncode}\n{done.stderr[-8000:]}"
    assert not done.stderr, done.stderr[-8000:]


def test_random_calls_agree_with_the_definition_and_stay_within_their_memory(tmp_path):
    check(
        # The matrix unit is emulated: the sanitizers do not see what the real one reads and writes.
        build(
            tmp_path,
            *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
            "-DRELPOS_EMULATED_TILES",
        ),
        *("300", "300"),
    )


def test_threads_of_random_calls_do_not_race(tmp_path):
    check(build(tmp_path, "-fsanitize=thread"), "300", "0", "threads")
