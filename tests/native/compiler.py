"""The C++ compilers of this machine, for the tests that need one."""

from __future__ import annotations

import os
import platform
import shlex
import shutil

import pytest

__all__ = ["arm_compiler", "arm_emulator", "compiler", "is_arm"]


def compiler() -> list[str]:
    """The command that CXX names, else the first compiler found; skips the test without one."""
    named = shlex.split(os.environ.get("CXX", ""))
    found = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
    if not named and found is None:
        pytest.skip("there is no C++ compiler: neither CXX, nor g++, clang++ or c++")
    return named or [str(found)]


def is_arm() -> bool:
    """Whether this is a 64-bit ARM machine."""
    return platform.machine() in ("aarch64", "arm64")


def arm_compiler() -> list[str]:
    """The compiler for 64-bit ARM, elsewhere a cross compiler; skips the test without one."""
    if is_arm():
        return compiler()
    if not shutil.which("aarch64-linux-gnu-g++"):
        pytest.skip("there is no aarch64-linux-gnu-g++ (Debian's g++-aarch64-linux-gnu)")
    return ["aarch64-linux-gnu-g++"]


def arm_emulator() -> list[str]:
    """What runs a program for 64-bit ARM, all extensions included; skips the test without it."""
    if not shutil.which("qemu-aarch64"):
        pytest.skip("there is no qemu-aarch64 (Debian's qemu-user)")
    return ["qemu-aarch64", "-cpu", "max"]
