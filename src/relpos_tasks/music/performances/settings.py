"""Sizes and budgets for performances, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...training.settings import TrainingSettings
from ..settings import MusicSettings

__all__ = ["PRESETS", "PerformanceSettings"]


@dataclass(frozen=True)
class PerformanceSettings(MusicSettings):
    """Those of any music, and how much is watched.

    Args:
        valid_tokens: the most tokens that are watched while training; None: all.
    """

    valid_tokens: int | None = None

    def recorded(self) -> dict[str, Any]:
        """What `model.json` says of the settings, beside the model's own."""
        return super().recorded() | {"valid_tokens": self.valid_tokens}


PRESETS = {
    # For two CPU cores and some minutes, whatever the size of the folder; chosen beside the
    # chorales' default, not tuned on performances.
    "default": PerformanceSettings(
        window=512,
        width=128,
        layers=3,
        heads=4,
        hidden=512,
        training=TrainingSettings(
            steps=600, batch=6, learning_rate=3e-3, warmup=50, valid_every=150, checkpoint_every=50
        ),
        valid_tokens=2**14,
        held_out_tokens=2**16,
    ),
    # The whole job in a minute or two, for trying out and for CI.
    "tiny": PerformanceSettings(
        window=128,
        width=32,
        layers=2,
        heads=2,
        hidden=64,
        training=TrainingSettings(
            steps=200, batch=8, learning_rate=5e-3, warmup=20, valid_every=100, checkpoint_every=50
        ),
        valid_tokens=2**12,
        held_out_tokens=2**14,
    ),
    # Six layers on sequences of 2048 tokens, as Huang et al. 2018 (section 4.2) train on piano
    # performances; widths, heads and budget are ours. For a GPU, on which nobody has run it yet.
    "maestro": PerformanceSettings(
        window=2048,
        width=384,
        layers=6,
        heads=8,
        hidden=1024,
        dropout=0.1,
        training=TrainingSettings(
            steps=100_000,
            batch=16,
            learning_rate=5e-4,
            warmup=4000,
            valid_every=2000,
            checkpoint_every=1000,
        ),
        valid_tokens=2**18,
    ),
}
