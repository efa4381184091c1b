"""Settings and runs of translation that are small enough for tests."""

from __future__ import annotations

from dataclasses import replace

from relpos_tasks.training.comparison import Comparison
from relpos_tasks.training.settings import TrainingSettings
from relpos_tasks.translation.settings import ChoraleSettings, TextSettings

__all__ = ["COMPARISON", "QUICK", "small", "small_chorales"]

# Options of a training of two steps.
QUICK = ["--preset=tiny", "--steps=2", "--batch=64", "--accelerator=cpu"]
# Positions at the input, Shaw's with a table alone, and two seeds.
COMPARISON = Comparison(["sinusoidal", "shaw-2", "shaw-1-keys"], seed=3, seeds=2)
_SIZES = {"width": 8, "layers": 1, "heads": 2, "hidden": 8, "dropout": 0.2, "beam": 2}
_TRAINING = TrainingSettings(steps=4, batch=64, warmup=2, seed=3, valid_every=2, checkpoint_every=2)


def small(**training) -> TextSettings:
    """The small settings of text, with other training settings."""
    return TextSettings(**_SIZES, vocabulary=300, training=replace(_TRAINING, **training))


def small_chorales(**training) -> ChoraleSettings:
    """The small settings of chorales, with other training settings."""
    return ChoraleSettings(
        **_SIZES, window=16, training=replace(_TRAINING, **({"batch": 2} | training))
    )
