"""How long a training took over all its runs, and whether the machine was busy meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..cpu_use import CpuReading, is_crowded, read_cpu, used_by_others

__all__ = ["TrainingClock", "TrainingTime"]


@dataclass(frozen=True)
class TrainingTime:
    """How long a training took.

    Args:
        seconds: over all its runs.
        others: cores that other programs used meanwhile, on average; None where the system does
            not say.
        crowded: whether they wanted the same cores in any of the runs, so that the time must not
            be compared with others; False where the system does not say.
    """

    seconds: float = 0.0
    others: float | None = 0.0
    crowded: bool = False

    def __add__(self, later: TrainingTime) -> TrainingTime:
        seconds, others = self.seconds + later.seconds, None
        if self.others is not None and later.others is not None:
            used = self.others * self.seconds + later.others * later.seconds
            others = used / seconds if seconds else 0.0
        return TrainingTime(seconds, others, self.crowded or later.crowded)


class TrainingClock:
    """A clock that goes on with what earlier runs of the same training took."""

    def __init__(self) -> None:
        self._before = TrainingTime()
        self._begun: tuple[float, CpuReading | None] | None = None
        self._processes = 1

    def start(self, *, processes: int = 1) -> None:
        """Begin a run.

        Args:
            processes: how many share the training, each on a device.
        """
        self._begun = time.perf_counter(), read_cpu()
        self._processes = processes

    def stop(self) -> None:
        """End the run."""
        self._before, self._begun = self.time, None

    @property
    def time(self) -> TrainingTime:
        """The time up to now."""
        if self._begun is None:
            return self._before
        begun, before = self._begun
        return self._before + self._since(time.perf_counter() - begun, before, read_cpu())

    def state_dict(self) -> dict[str, Any]:
        """The time up to now, for a checkpoint."""
        return vars(self.time).copy()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the time in a checkpoint."""
        self._before = TrainingTime(**state)

    def _since(
        self, seconds: float, before: CpuReading | None, now: CpuReading | None
    ) -> TrainingTime:
        if before is None or now is None:
            return TrainingTime(seconds, None)
        others = used_by_others(before, now, processes=self._processes)
        return TrainingTime(seconds, others, is_crowded(others, cores=now.cores))
