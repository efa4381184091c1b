"""Training of language models: the loss of the next token."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from .task import Task

__all__ = ["IGNORE", "LanguageModelTask", "nats"]

# The target of a token that is not scored.
IGNORE = -100


class LanguageModelTask(Task):
    """Next-token prediction.

    Batches are `(inputs, targets)`, each `(b, i)`; targets that are `IGNORE` do not count. The
    model gives logits for tokens.
    """

    loss_unit = "nats/token"
    units = "tokens"

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Nats of all targets that are scored, and how many they are."""
        inputs, targets = batch
        return nats(self.model(inputs), targets).sum(), (targets != IGNORE).sum()

    def count_units(self, batch: tuple[Tensor, Tensor]) -> int:
        """The tokens of a batch."""
        return batch[0].numel()


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
