"""How any command of `relpos` begins, fails and stops, whatever it is asked to do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.tasks.small import disk_with


def test_without_a_command_there_is_help(relpos):
    status, out, err = relpos()
    assert (status, err) == (0, "")
    assert "music" in out


@pytest.mark.parametrize(
    "command",
    ["", "music", "music compare", "music train", "music evaluate", "music generate", "plot"],
)
def test_every_command_has_help(relpos, command):
    status, out, _ = relpos(*command.split(), "--help")
    assert status == 0
    assert "Usage: relpos" in out


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["music", "generate", "{huang}", "--bars", "1", "--out", "{out}/tune"], "tune.musicxml"),
        (["plot", "shear", "--out", "{out}/shear.svg"], "shear.svg"),
    ],
)
def test_a_full_disk_is_one_line_that_names_the_file(
    compared_folder, relpos, tmp_path, command, name
):
    folder, _ = compared_folder
    given = [text.format(huang=folder / "huang", out=tmp_path) for text in command]
    with disk_with(100):
        status, out, err = relpos(*given)
    assert (status, out, err) == (2, "", f"relpos: {tmp_path / name}: File too large\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_one_line(error, monkeypatch, relpos):
    def starve(arguments):
        raise error

    monkeypatch.setattr("relpos_tasks.cli.app.run", starve)
    assert relpos("plot", "shear")[::2] == (2, "relpos: not enough memory; ask for less at once\n")


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
    ids=["by itself", "spins of the user", "policy of the user"],
)
def test_threads_spin_for_a_short_time_unless_the_user_says_otherwise(
    given, used, monkeypatch, relpos
):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        # Set first, so that whatever was there before the test comes back after it.
        monkeypatch.setenv(name, "")
        del os.environ[name]
    os.environ.update(given)
    seen = []
    monkeypatch.setattr(
        "relpos_tasks.cli.app.run", lambda _: seen.append(os.environ.get("GOMP_SPINCOUNT")) or 0
    )
    relpos("plot")
    assert seen == [used]


@pytest.mark.no_typecheck
def test_openmp_is_told_how_to_wait_before_torch_is_imported():
    check = "import relpos_tasks.cli.entry, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.no_typecheck
def test_a_stopped_training_says_so_and_leaves_a_whole_checkpoint(grid, tmp_path):
    steps = ["--preset", "tiny", "--steps", "100000", "--batch", "1", "--window", "8"]
    command = [sys.executable, "-m", "relpos", "music", "train", "--position", "none", *steps]
    command += ["--accelerator", "cpu", "--data", str(grid), "--runs", str(tmp_path)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        resume = tmp_path / "literature-tiny" / "none" / "last.ckpt"
        begun = time.monotonic()
        while not resume.exists() and time.monotonic() < begun + 60:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    lines = [line for line in err.splitlines() if not line.startswith(("pieces: ", "none: step"))]
    assert lines == [
        "relpos: stopped; the same command goes on from the last checkpoint, if there is one"
    ]
    assert torch.load(resume, weights_only=True)["global_step"] >= 50
    assert not list(Path(tmp_path).rglob(".part-*"))
