"""Runs the `relpos` command inside the tests' own process, on small pieces and checkpoints."""

import os
import subprocess
import sys
import warnings

import pytest

from relpos_tasks import cli
from relpos_tasks.cli import entry
from relpos_tasks.music.source import read_source
from relpos_tasks.music.train import build
from relpos_tasks.training.checkpoint import save_about, save_weights
from tests.tasks.small import QUICK, small, write_grid


@pytest.fixture
def relpos(monkeypatch, capsys):
    """Runs the program here: `(status, stdout, stderr)`."""

    def run(*arguments):
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
        # It would end the tests with the command.
        monkeypatch.setattr(entry, "stop_on_signals", lambda words: None)
        monkeypatch.setattr(sys, "argv", ["relpos", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return run


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """The pieces that the checkpoints were made beside."""
    return write_grid(tmp_path_factory.mktemp("data") / "jsb.json")


@pytest.fixture(scope="session")
def checkpoints(grid, tmp_path_factory):
    """A folder with an untrained checkpoint for each position."""
    folder, source, settings = tmp_path_factory.mktemp("runs"), read_source(grid), small()
    for position in ("huang", "absolute", "none"):
        model = build(position, settings, source.vocabulary)
        about = {
            "model": model.config.to_dict(),
            "data": source.about(),
            "settings": {"window": settings.window},
        }
        save_weights(folder / position, model)
        save_about(folder / position, about)
    return folder


@pytest.fixture(scope="session")
def compared_folder(grid, tmp_path_factory):
    """The folder of a run of `relpos music compare` in a process of its own, and the process."""
    runs = tmp_path_factory.mktemp("runs")
    given = ["--bars", "1", "--data", grid, "--runs", runs]
    done = subprocess.run(
        [sys.executable, "-m", "relpos", "music", "compare", *QUICK, *given],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return runs / "literature-tiny", done
