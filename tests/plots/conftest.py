import sys
import warnings

import numpy as np
import pytest
import torch

from relpos import cli
from relpos.tasks.checkpoint import save_about, save_weights
from relpos.tasks.music.source import read_source
from relpos.tasks.music.train import build

from ..tasks.small import small, write_grid


@pytest.fixture
def relpos(monkeypatch, capsys):
    """Runs the program here: `(status, stdout, stderr)`."""

    def run(*arguments):
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
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


@pytest.fixture(autouse=True)
def _other_settings_of_the_user(monkeypatch):
    """What a user's matplotlibrc or notebook says is no part of a figure."""
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 30, "image.origin": "lower"}):
        yield


@pytest.fixture
def weights():
    """Causal weights of two layers with three heads."""
    scores = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 3, 9, 9)))
    ahead = torch.ones(9, 9).triu(1).bool()
    return scores.masked_fill(ahead, -torch.inf).softmax(-1).float()
