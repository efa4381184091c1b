"""The time of Python before a launch: that it is taken, not how long it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.no_typecheck

ROOT = Path(__file__).parents[1]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "scripts.host_time", *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environment, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.costly(2, of="programs that measure")
def test_every_call_is_timed(tmp_path: Path):
    done = run("--rounds", 1, "--out", tmp_path / "host.json")
    assert done.returncode == 0, done.stderr[-2000:]
    times = json.loads((tmp_path / "host.json").read_text())["us"]
    assert {"plain", "Shaw keys", "T5 bias", "Triton's launcher up to the driver"} <= set(times)
    assert all(x > 0 for x in times.values())
    assert all(name in done.stdout for name in times)


@pytest.mark.parametrize(
    "arguments", [("--rounds", "0"), ("--rounds", "two"), ("--out", "."), ("--out", "/dev/null/x")]
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...], refusal):
    from scripts import host_time

    assert f"argument {arguments[0]}" in refusal(host_time, arguments, "measured")
