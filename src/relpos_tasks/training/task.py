"""Training of language models on Lightning, resumable to the bit.

Everything random is a pure function of the seed and the step: the batches (the data sees to it)
and the dropout (the generators are seeded anew before each step). So a run that was stopped, by
Ctrl-C or by kill -9, and then resumed from its last checkpoint ends with the same weights as one
that was never stopped.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from relpos.positions.absolute import LearnedAbsolute
from relpos.positions.tables import LearnedTables

from ..models.decoder import DecoderLM

__all__ = [
    "IGNORE",
    "Curves",
    "LanguageModelTask",
    "TrainingError",
    "TrainingSettings",
    "nats",
    "settings_differ",
]

# The target of a token that is not scored.
IGNORE = -100

# For "train" and "valid": step and nats per token.
Curves = dict[str, list[tuple[int, float]]]


class TrainingError(ValueError):
    """A training run cannot begin or go on as asked; the message is one line."""


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    Args:
        steps: optimiser steps.
        batch: sequences per step, over all devices together.
        learning_rate: the highest, reached after the warm-up, then down a cosine to nothing.
        warmup: steps of linear warm-up.
        weight_decay: of weight matrices alone.
        clip: the largest norm of the gradient.
        seed: of the weights, the data order and the dropout.
        valid_every: steps between measurements on the validation pieces.
        checkpoint_every: steps between checkpoints.
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


class LanguageModelTask(lightning.LightningModule):
    """Next-token prediction with AdamW, warm-up and cosine decay.

    Batches are `(inputs, targets)`, each `(batch, tokens)`; targets that are `IGNORE` do not
    count. `curves` grows with training: `(step, nats)` for train and valid.

    Args:
        model: gives logits for tokens.
        settings: how to train.
    """

    def __init__(self, model: DecoderLM, settings: TrainingSettings) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.curves: Curves = {"train": [], "valid": []}
        self.seconds = 0.0
        self._step_since = 0.0
        self._since: float | None = None
        self._recent: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Mean nats per token of a batch."""
        loss = _mean_nats(self.model, *batch)
        self._recent.append(loss.detach())
        self.log("train/loss", loss, prog_bar=False, batch_size=1)
        done = self.global_step + 1
        if done % self.curve_every == 0 or done == self.settings.steps:
            recent = float(torch.stack(self._recent).mean())
            self.curves["train"].append((done, recent))
            self._recent.clear()
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Nats per token of a batch, weighted by its tokens in the mean over batches."""
        scored = int((batch[1] != IGNORE).sum())
        # Every device measures all pieces: the mean over devices is each one's.
        loss = _mean_nats(self.model, *batch)
        self.log("valid/loss", loss, batch_size=scored, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Keep the curve."""
        if not self.trainer.sanity_checking:
            value = float(self.trainer.callback_metrics["valid/loss"])
            self.curves["valid"].append((self.global_step, value))

    def on_train_start(self) -> None:
        """Start the clock."""
        self._since = time.perf_counter()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed the dropout, so that it depends on the seed, the step and the device alone."""
        place = (self.settings.seed * 2**20 + self.global_step) * 2**10 + self.global_rank
        torch.manual_seed(place % 2**63)
        self._step_since = time.perf_counter()

    def on_train_batch_end(
        self, outputs: Any, batch: tuple[Tensor, Tensor], batch_idx: int
    ) -> None:
        """Log the speed: of the step alone, without validation and checkpoints."""
        tokens = batch[0].numel() * self.trainer.world_size
        rate = tokens / max(time.perf_counter() - self._step_since, 1e-9)
        self.log("train/tokens_per_second", rate, batch_size=1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what the curves need, beside what Lightning keeps."""
        checkpoint["relpos"] = {
            "curves": self.curves,
            "seconds": self.elapsed,
            "recent": [float(loss) for loss in self._recent],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on where the checkpoint was written."""
        kept = checkpoint["relpos"]
        self.curves, self.seconds = kept["curves"], kept["seconds"]
        self._recent = [torch.tensor(loss) for loss in kept["recent"]]

    def on_train_end(self) -> None:
        """Stop the clock."""
        self.seconds, self._since = self.elapsed, None

    @property
    def curve_every(self) -> int:
        """Steps between two points of the training curve: at most some hundred points."""
        return max(1, min(20, self.settings.steps // 20))

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, over all runs of it."""
        return self.seconds + (0.0 if self._since is None else time.perf_counter() - self._since)

    def configure_optimizers(self) -> Any:
        """AdamW with a linear warm-up and a cosine decay, by the step."""
        decayed = {id(p) for p in _matrices(self.model)}
        parameters = list(self.model.parameters())
        optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if id(p) in decayed]},
                {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
            ],
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            betas=(0.9, 0.98),
        )
        # A lambda stays out of the checkpoint, into which a method would be written.
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: self._rate(step),  # noqa: PLW0108
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _rate(self, step: int) -> float:
        warmup, steps = min(self.settings.warmup, self.settings.steps // 2), self.settings.steps
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def nats(
    logits: Float[Tensor, "b i vocabulary"], targets: Int[Tensor, "b i"]
) -> Float[Tensor, "b i"]:
    """Negative log-likelihood of each target, zero where it is `IGNORE`.

    Args:
        logits: for each position.
        targets: token ids or `IGNORE`.

    Returns:
        Nats.
    """
    return functional.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=IGNORE, reduction="none"
    )


def settings_differ(before: dict[str, Any], about: dict[str, Any]) -> str | None:
    """Which setting of an earlier run is another one now; None if there is none.

    Args:
        before: what the earlier run said in `model.json`.
        about: what this one is to say.

    >>> settings_differ({"batch": {"size": 8}}, {"batch": {"size": 9}})
    'batch.size was 8, now 9'
    """
    then, now = (_flat({k: v for k, v in it.items() if k != "versions"}) for it in (before, about))
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            return f"{name} was {then.get(name)}, now {now.get(name)}"
    return None


def _mean_nats(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nats(model(inputs), targets).sum() / (targets != IGNORE).sum().clamp(min=1)


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    """What weight decay is for: matrices, but neither embeddings nor the rows of positions."""
    tables = (nn.Embedding, LearnedTables, LearnedAbsolute)
    spared = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, tables)
        for parameter in module.parameters()
    }
    return [p for p in model.parameters() if p.ndim >= 2 and id(p) not in spared]


def _flat(nested: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(nested, dict):
        return {prefix: nested}
    return {
        name: value
        for key, inner in nested.items()
        for name, value in _flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }
