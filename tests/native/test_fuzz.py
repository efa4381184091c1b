"""The compiled kernel against its definition, for random calls under the compiler's sanitizers."""

from __future__ import annotations

import subprocess
from itertools import zip_longest
from pathlib import Path

import pytest

from .compiler import arm_compiler, arm_emulator, compiler

pytestmark = [pytest.mark.slow, pytest.mark.no_typecheck]

ROOT = Path(__file__).parents[2]
KERNELS = sorted((ROOT / "csrc").glob("kernel_*.cpp"))


def build(folder: Path, compile: list[str], *flags: str) -> Path:
    """The fuzz program, its kernels and its linking with the flags; two files at a time."""
    command = [*compile, "-std=c++17", "-g1", "-pthread", "-Wall", "-Wextra"]
    # What judges the kernels runs at full speed; its memory is watched all the same.
    own = {ROOT / "tests/native/fuzz.cpp": ["-O2"]} | {
        kernel: ["-Wno-psabi", *flags] for kernel in KERNELS
    }
    waiting = [
        [*command, *some, "-c", str(source), "-o", str(folder / f"{source.stem}.o")]
        for source, some in own.items()
    ]
    for two in zip_longest(waiting[::2], waiting[1::2]):
        running = [subprocess.Popen(one, stderr=subprocess.PIPE, text=True) for one in two if one]
        for process in running:
            _, warnings = process.communicate()
            assert process.returncode == 0, warnings
            assert not warnings, warnings
    objects = [str(folder / f"{source.stem}.o") for source in own]
    program = folder / "fuzz"
    linked = subprocess.run(
        [*command, *flags, *objects, "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert linked.returncode == 0, linked.stderr
    return program


def check(*command: str | Path) -> None:
    """Run it: it says nothing, or which call went wrong."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"returned {done.returncode}\n{done.stderr[-8000:]}"
    assert not done.stderr, done.stderr[-8000:]


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    """The program under the sanitizers of addresses and of undefined behaviour."""
    # The matrix unit is emulated: the sanitizers do not see what the real one reads and writes.
    # Pointers are looked at where memory is read or written: to do so at each step takes long.
    flags = (
        "-Og",  # compiles sooner than -O1, by more than it runs longer
        *("-fsanitize=address,undefined", "-fno-sanitize=null,object-size,pointer-overflow"),
        *("-fno-sanitize-recover=all", "-DRELPOS_EMULATED_TILES"),
    )
    return build(tmp_path_factory.mktemp("watched"), compiler(), *flags)


@pytest.fixture(scope="module")
def raced(tmp_path_factory) -> Path:
    """The program under the sanitizer of threads."""
    # So that some calls have room for sums of their own in each thread, and some have not.
    flags = "-Og", "-fsanitize=thread", "-DRELPOS_MAX_BYTES_OF_MASK_SUMS=4096"
    return build(tmp_path_factory.mktemp("raced"), compiler(), *flags)


@pytest.mark.parametrize("first", range(300, 500, 40))
@pytest.mark.costly(1, of="sanitizers")
def test_random_calls_agree_with_the_definition_and_stay_within_their_memory(watched, first):
    check(watched, "40", str(first))


@pytest.mark.parametrize("first", range(0, 300, 50))
@pytest.mark.costly(1, of="sanitizers")
def test_threads_of_random_calls_do_not_race(raced, first):
    check(raced, "50", str(first), "threads")


def test_random_calls_agree_with_the_definition_on_64_bit_arm(tmp_path):
    """Emulated, so that it says nothing of the speed; where the machine is ARM, see above."""
    emulator, compile = arm_emulator(), arm_compiler()
    check(*emulator, build(tmp_path, compile, "-O2", "-static"), "150", "300")
