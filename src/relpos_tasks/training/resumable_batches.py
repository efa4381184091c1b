"""Training batches in an order that can be left after any step and gone on with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["ResumableBatches"]

BatchT = TypeVar("BatchT")


class ResumableBatches(ABC, Generic[BatchT]):
    """One batch per step; resumable, since a batch is a function of the step.

    Args:
        steps: how many batches there are.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._next = 0

    @abstractmethod
    def at(self, step: int) -> BatchT:
        """The batch of a step.

        Args:
            step: from 0.
        """

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[BatchT]:
        while self._next < self._steps:
            step = self._next
            # Counted before the batch is given away: a checkpoint with it resumes at the next.
            self._next += 1
            yield self.at(step)
        self._next = 0

    def state_dict(self) -> dict[str, int]:
        """The next step, for Lightning's checkpoints."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a step."""
        self._next = state["next"]
