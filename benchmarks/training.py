"""Steps per second of the main job's relative model, by what computes its attention.

Every round trains each contender's copy of the model for some steps on the same batches, one after
the other; a ratio is taken within its round.

    python -m benchmarks.training
    python -m benchmarks.training --windows 16 --steps 1 --rounds 1 --out some.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from relpos import Terms, attention
from relpos_tasks.music.settings import MusicSettings, preset
from relpos_tasks.music.tokens import Vocabulary
from relpos_tasks.music.train import build
from relpos_tasks.training.language_model import LanguageModelTask

from .files import RESULTS, save
from .measure.machine import machine
from .measure.timing import wall_clock
from .measure.training_steps import TrainingSteps
from .workloads import rivals

OP = "relpos.layers.multihead.attention"  # what the model calls


def eager_skew(q: Tensor, k: Tensor, v: Tensor, terms: Terms, **_: object) -> Tensor:
    """Huang's published way, in the op's place; the model has nothing but keys."""
    assert terms.keys is not None
    return rivals.eager_skew(q, k, v, terms.keys.rows[:, -q.shape[2] :])


def contenders() -> dict[str, Callable[..., Tensor]]:
    """What stands in the op's place."""
    ours = {name: partial(attention, backend=name) for name in ("native", "tiled", "reference")}
    return {f"relpos {name}": op for name, op in ours.items()} | {"eager skew": eager_skew}


class Training(TrainingSteps):
    """A model in training with one contender.

    Args:
        settings: sizes and budget of the job.
        model: is copied.
        op: in the place of `relpos.attention`.
    """

    def __init__(
        self, settings: MusicSettings, model: torch.nn.Module, op: Callable[..., Tensor]
    ) -> None:
        super().__init__(LanguageModelTask(deepcopy(model), settings.training))
        self.op = op

    def step(self, batch: Tensor) -> float:
        """One step on sequences of tokens; its loss."""
        with patch(OP, self.op):
            return super().step((batch[:, :-1], batch[:, 1:]))


def measure(window: int, steps: int, rounds: int) -> list[dict]:
    """Rows of the result, one for each contender."""
    settings = preset("default", window=window)
    vocabulary = Vocabulary(lowest=36, highest=81)
    model = build("huang", settings, vocabulary)
    runs = {name: Training(settings, model, op) for name, op in contenders().items()}
    draw = torch.Generator().manual_seed(0)
    shape = (settings.training.batch, window + 1)
    batches = [torch.randint(vocabulary.size, shape, generator=draw) for _ in range(steps)]
    losses = {name: run.step(batches[0]) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(wall_clock(partial(run.run, batches), 1))
    fastest = seconds["relpos native"]
    rows = []
    for name, own in seconds.items():
        faster = [b / a for a, b in zip(fastest, own, strict=True)]
        rows.append(
            {
                "window": window,
                "contender": name,
                "steps_per_second": steps / statistics.median(own),
                "native_is_faster_by": statistics.median(faster),
                "first_loss": losses[name],
            }
        )
        print(
            f"window {window:5} {name:18} {rows[-1]['steps_per_second']:6.2f} steps/s, native is "
            f"{rows[-1]['native_is_faster_by']:.2f} times as fast; loss {losses[name]:.5f}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--windows", type=int, nargs="+", default=[256, 1024], help="tokens")
    parser.add_argument("--steps", type=int, default=4, help="of a round (4)")
    parser.add_argument("--rounds", type=int, default=5, help="(5)")
    parser.add_argument("--out", type=Path, default=RESULTS / "training.json")
    options = parser.parse_args()
    rows = [
        row for window in options.windows for row in measure(window, options.steps, options.rounds)
    ]
    save(options.out, {"machine": machine(), "training": rows})
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
