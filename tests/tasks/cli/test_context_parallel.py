"""`relpos music compare` with sequences that two devices share: the numbers of one device."""

import json
import os
import subprocess
import sys

import pytest

from tests.tasks.small import QUICK

RELPOS = ["-m", "relpos"]
# What starts the program for two devices: itself once more, by Lightning; or torchrun, twice.
STARTED_BY = {
    "Lightning": RELPOS,
    "torchrun": [
        "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", sys.executable,
        *RELPOS,
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.parametrize("program", STARTED_BY.values(), ids=STARTED_BY)
@pytest.mark.costly(1, of="several processes")
def test_two_devices_train_what_one_trains(program, grid, tmp_path):
    def held_out(program, *devices):
        given = ["--bars", "1", "--data", grid, "--runs", tmp_path, "--accelerator", "cpu"]
        given += ["--positions", "huang,absolute", "--name", f"on-{devices[1]}"]
        done = subprocess.run(
            [sys.executable, *program, "music", "compare", *QUICK, *given, *devices],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / f"on-{devices[1]}" / "metrics.json").read_text())["held_out"]

    found = held_out(program, "--devices", "2", "--context-parallel", "2")
    for position, expected in held_out(RELPOS, "--devices", "1").items():
        # Float32 sums in another order, at each step of AdamW.
        assert found[position]["nats"] == pytest.approx(expected["nats"], abs=1e-4)
