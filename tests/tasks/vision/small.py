"""Settings of the vision task that are small enough for tests."""

from __future__ import annotations

from dataclasses import replace

from relpos_tasks.training.comparison import Comparison
from relpos_tasks.training.settings import TrainingSettings
from relpos_tasks.vision.settings import VisionSettings

COMPARISON = Comparison(["none", "absolute", "grid"], seed=3, seeds=2)
# Options of a training of two steps.
QUICK = ["--preset=tiny", "--steps=2", "--batch=2", "--accelerator=cpu"]
SMALL = VisionSettings(
    width=8,
    layers=1,
    heads=2,
    canvases=3,
    watched=3,
    training=TrainingSettings(
        steps=4, batch=2, warmup=2, seed=3, valid_every=2, checkpoint_every=2
    ),
)


def small(**training) -> VisionSettings:
    """The small settings, with other training settings."""
    return replace(SMALL, training=replace(SMALL.training, **training))
