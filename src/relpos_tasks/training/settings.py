"""How to train, and whether an earlier run in a folder was trained in the same way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

from relpos.checks import check_probability

from .limits import MAX_STEPS, check_seed

__all__ = ["TrainingError", "TrainingSettings", "settings_differ", "with_budget"]


class TrainingError(ValueError):
    """A training run cannot begin or go on as asked; the message is one line."""


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    Args:
        steps: optimiser steps.
        batch: examples per step, over all devices together.
        learning_rate: the highest, reached after the warm-up, then down a cosine to nothing.
        warmup: steps of linear warm-up.
        weight_decay: of weight matrices alone.
        clip: the largest norm of the gradient.
        seed: of the weights, the data order and the dropout.
        valid_every: steps between measurements on the validation data; one more follows the last.
        checkpoint_every: steps between checkpoints.
        averaging: the decay of an exponential moving average of the weights (`averaging.py`), which
            is then what is validated, written and returned; None: the last weights.
        muon_learning_rate: that of weight matrices where Muon moves them (`optimizers.py`), on the
            same schedule; None: AdamW moves everything.

    Raises:
        ValueError: unless `0 <= averaging < 1`, or if the learning rate of Muon is not positive.
    """

    steps: int = 1150
    batch: int = 8
    learning_rate: float = 4e-3
    warmup: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    valid_every: int = 150
    checkpoint_every: int = 50
    averaging: float | None = None
    muon_learning_rate: float | None = None

    def __post_init__(self) -> None:
        if self.averaging is not None:
            check_probability("TrainingSettings", "averaging", self.averaging)
        rate = self.muon_learning_rate
        if rate is not None and not 0 < rate < inf:
            raise ValueError(
                f"TrainingSettings: muon_learning_rate must be a positive number, got {rate}"
            )


def with_budget(
    settings: TrainingSettings,
    *,
    steps: int | None = None,
    batch: int | None = None,
    seed: int | None = None,
) -> TrainingSettings:
    """A preset's settings with what was asked for in their place.

    Args:
        settings: of the preset.
        steps: optimiser steps; None keeps the preset's, like the others.
        batch: examples per step.
        seed: of everything random.

    Raises:
        ValueError: if a number is out of range.

    >>> with_budget(TrainingSettings(), steps=5).steps
    5
    """
    given = {"steps": steps, "batch": batch}
    for argument, value in given.items():
        if value is not None and value < 1:
            raise ValueError(f"preset: {argument} must be at least 1, got {value}")
    if steps is not None and steps > MAX_STEPS:
        raise ValueError(f"preset: steps must be at most {MAX_STEPS}, got {steps}")
    if seed is not None:
        given["seed"] = check_seed("preset", seed)
    changes = {argument: value for argument, value in given.items() if value is not None}
    return replace(settings, **changes)


def settings_differ(before: dict[str, Any], about: dict[str, Any]) -> str | None:
    """Which setting of an earlier run is another one now; None if there is none.

    The format, the versions and how much is measured are no settings of a training. An option that
    is off is one that is not there.

    Args:
        before: what the earlier run said in `model.json`.
        about: what this one is to say.

    >>> settings_differ({"batch": {"size": 8}}, {"batch": {"size": 9}})
    'batch.size was 8, now 9'
    """
    then, now = (
        _flat({k: v for k, v in it.items() if k not in ("format", "versions", "measuring")})
        for it in (before, about)
    )
    for name in sorted(then.keys() | now.keys()):
        if _given(then.get(name)) != _given(now.get(name)):
            return f"{name} was {then.get(name)}, now {now.get(name)}"
    return None


def _given(value: Any) -> Any:
    """None in place of False: settings of an earlier run may lack an option that came later."""
    return None if value is False else value


def _flat(nested: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(nested, dict):
        return {prefix: nested}
    return {
        name: value
        for key, inner in nested.items()
        for name, value in _flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }
