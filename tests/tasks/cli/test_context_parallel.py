"""`relpos music compare` with sequences that two devices share: the numbers of one device."""

import json
import os
import subprocess
import sys

import pytest

from tests.tasks.small import QUICK

SHARED = ["--devices", "2", "--context-parallel", "2"]
# What starts the program: itself once more, by Lightning; or torchrun, twice.
PROGRAMS = {
    "one device": (["-m", "relpos"], ["--devices", "1"]),
    "two by Lightning": (["-m", "relpos"], SHARED),
    "two by torchrun": (
        ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python",
         sys.executable, "-m", "relpos"],
        SHARED,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.parametrize("two", [name for name in PROGRAMS if name.startswith("two")])
@pytest.mark.costly(1)
def test_two_devices_train_what_one_trains(two, grid, tmp_path):
    found = {}
    for name in ("one device", two):
        program, devices = PROGRAMS[name]
        given = ["--bars", "1", "--data", grid, "--runs", tmp_path / name, "--accelerator", "cpu"]
        positions = ["--positions", "huang,absolute"]
        done = subprocess.run(
            [sys.executable, *program, "music", "compare", *QUICK, *positions, *given, *devices],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        metrics = json.loads((tmp_path / name / "literature-tiny" / "metrics.json").read_text())
        found[name] = metrics["held_out"]
    for position, expected in found["one device"].items():
        # Float32 sums in another order, at each step of AdamW.
        assert found[two][position]["nats"] == pytest.approx(expected["nats"], abs=1e-4)
