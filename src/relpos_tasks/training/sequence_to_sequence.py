"""Training of encoder-decoders: the loss of the next target token, with smoothed labels."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from relpos.checks import check_probability

from ..models.encoder_decoder import EncoderDecoder
from ..models.evaluation_mode import evaluating
from .language_model import IGNORE, nats
from .settings import TrainingSettings
from .task import Task

__all__ = ["SequenceToSequenceTask", "mean_nats", "source_padding"]

# Source, target up to the last token but one, and the target from its second token on.
Batch = tuple[Tensor, Tensor, Tensor]


class SequenceToSequenceTask(Task):
    """Prediction of the next target token.

    Batches are `(source, target_in, target_out)`, the first `(b, j)` and the others `(b, i)`, each
    filled up behind its end; targets that are `IGNORE` do not count. Training minimises

        (1 - epsilon) * -log P(y) + epsilon * mean over all tokens of -log P(token)

    (label smoothing: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4), while both
    curves show `-log P(y)`, in nats.

    Args:
        model: what is trained.
        settings: how to train.
        padding: the token behind the end of a source, which stands nowhere else in it.
        label_smoothing: epsilon, in `0 <= epsilon < 1`.

    Raises:
        ValueError: if `label_smoothing` is out of range.
    """

    loss_unit = "nats/target token"
    units = "target tokens"
    model: EncoderDecoder

    def __init__(
        self,
        model: EncoderDecoder,
        settings: TrainingSettings,
        *,
        padding: int = 0,
        label_smoothing: float = 0.1,
    ) -> None:
        super().__init__(model, settings)
        self.padding = padding
        self.label_smoothing = check_probability(
            "SequenceToSequenceTask", "label_smoothing", label_smoothing
        )

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Nats of all targets that are scored, and how many they are."""
        logits, targets = self._logits(batch), batch[2]
        return nats(logits, targets).sum(), (targets != IGNORE).sum()

    def objective(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The smoothed loss and the plain one, as sums, and the number of targets scored."""
        log_p, targets = self._logits(batch).log_softmax(-1), batch[2]
        scored = targets != IGNORE
        index = targets.masked_fill(~scored, 0)[..., None]
        plain = -log_p.gather(-1, index)[..., 0][scored].sum()
        spread = -log_p.mean(-1)[scored].sum()
        smoothed = torch.lerp(plain, spread, self.label_smoothing)
        return smoothed, plain, scored.sum()

    def count_units(self, batch: Batch) -> int:
        """The target tokens of a batch, padding not counted."""
        return int((batch[2] != IGNORE).sum())

    def _logits(self, batch: Batch) -> Float[Tensor, "b i vocabulary"]:
        source, target, _ = batch
        return self.model(source, target, source_padding(source, self.padding))


def source_padding(source: Int64[Tensor, "b j"], padding: int) -> Bool[Tensor, "b j"]:
    """True where a source has ended.

    Args:
        source: tokens.
        padding: the token behind the end of a source.
    """
    return source == padding


def mean_nats(model: EncoderDecoder, batches: Iterable[Batch], *, padding: int = 0) -> float:
    """Mean nats per target token, over all tokens of all batches alike.

    The model runs in evaluation mode and is left as it was found.

    Args:
        model: gives the logits.
        batches: as `SequenceToSequenceTask` takes them.
        padding: the token behind the end of a source.

    Returns:
        Nats per target token.

    Raises:
        ValueError: if there is no target to score, or the model gives no finite numbers.
    """
    device = model.source_embedding.weight.device
    total, scored = 0.0, 0
    with evaluating(model), torch.inference_mode():
        for batch in batches:
            source, target, expected = (part.to(device) for part in batch)
            logits = model(source, target, source_padding(source, padding)).double()
            total += float(nats(logits, expected).sum())
            scored += int((expected != IGNORE).sum())
    if not scored:
        raise ValueError("mean_nats: batches must have targets to score, got none")
    if not isfinite(total):
        raise ValueError(f"mean_nats: logits of the model must be finite, got {total} nats")
    return total / scored
