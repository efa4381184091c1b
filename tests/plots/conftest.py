"""Fixtures of the figures' tests."""

import numpy as np
import pytest
import torch


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
