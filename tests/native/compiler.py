"""The C++ compiler of this machine, for the tests that need one."""

from __future__ import annotations

import os
import shlex
import shutil

import pytest

__all__ = ["compiler"]


def compiler() -> list[str]:
    """The command that CXX names, else the first compiler found; skips the test without one."""
    named = shlex.split(os.environ.get("CXX", ""))
    found = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
    if not named and found is None:
        pytest.skip("there is no C++ compiler: neither CXX, nor g++, clang++ or c++")
    return named or [str(found)]
