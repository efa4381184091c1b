"""An exponential moving average of a model's weights, kept while the model is trained.

After each optimiser step, `n` of which are in the average already,

    average <- k average + (1 - k) weights,    k = min(decay, (n + 1) / (n + 10))

so that the average forgets its beginning quickly (the rule of TensorFlow's
`ExponentialMovingAverage` with `num_updates`). With `n = 0` it becomes the weights themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .settings import TrainingError

__all__ = ["check_averaging", "moving_average"]

# In these a weight of the average would not move: a thousandth of a step is below their precision.
_TOO_COARSE = ("bf16-true", "16-true")


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """The average of a model's weights, to be told of each step by `update_parameters(model)`.

    Buffers, such as the running statistics of batch norms, are copied and not averaged.

    Args:
        model: in training; the average begins with a copy of it.
        decay: the share that the average keeps in a step, once the first steps are past.
    """
    average = AveragedModel(model, multi_avg_fn=partial(_move, decay=decay))
    return average.requires_grad_(False)


def check_averaging(averaging: float | None, *, precision: str) -> None:
    """Raise if weights of this precision cannot be averaged.

    Args:
        averaging: the decay; None where nothing is averaged.
        precision: as Lightning names it.

    Raises:
        TrainingError: if the average would be kept in 16 bits.
    """
    if averaging is not None and precision in _TOO_COARSE:
        mixed = precision.replace("true", "mixed")
        raise TrainingError(
            f"--precision: must keep the weights in 32 bits or more where they are averaged, "
            f"got {precision!r}; try {mixed}"
        )


def _move(
    average: Sequence[Tensor], weights: Sequence[Tensor], steps: Tensor | int, *, decay: float
) -> None:
    """Move the average towards the weights, in place."""
    n = int(steps)
    get_ema_multi_avg_fn(min(decay, (n + 1) / (n + 10)))(average, weights, n)  # type: ignore[arg-type]
