"""Several position schemes trained alike: which, with which seeds, and into which folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from .limits import MAX_SEED
from .trained import TrainedModel

__all__ = ["Comparison", "mean_and_spread"]

_MOST_SEEDS = 100


@dataclass(frozen=True)
class Comparison:
    """The trainings of a comparison, all of them equal but for position and seed.

    Args:
        positions: names of schemes, in the order of the report.
        seed: of the first training of each scheme.
        seeds: how many trainings of each scheme; seeds rise by one.

    Raises:
        ValueError: if there is no position, one stands there twice, or a seed is out of range.
    """

    positions: Sequence[str]
    seed: int = 0
    seeds: int = 1

    def __post_init__(self) -> None:
        if not self.positions:
            raise ValueError("Comparison: positions must be at least one, got none")
        if twice := [name for name in self.positions if list(self.positions).count(name) > 1]:
            raise ValueError(f"Comparison: positions must differ, got {twice[0]!r} twice")
        if not 1 <= self.seeds <= _MOST_SEEDS:
            raise ValueError(f"Comparison: seeds must be in 1..{_MOST_SEEDS}, got {self.seeds}")
        if not 0 <= self.seed <= MAX_SEED - self.seeds + 1:
            raise ValueError(
                f"Comparison: seed must be in 0..{MAX_SEED - self.seeds + 1}, got {self.seed}"
            )

    @property
    def all_seeds(self) -> list[int]:
        """The seeds of each scheme.

        >>> Comparison(["huang"], seed=3, seeds=2).all_seeds
        [3, 4]
        """
        return list(range(self.seed, self.seed + self.seeds))

    def folders(self, folder: Path) -> Iterator[tuple[str, int, Path]]:
        """Position, seed and folder of each training, the first seeds of all schemes first.

        Args:
            folder: of the run.
        """
        for seed in self.all_seeds:
            for position in self.positions:
                name = position if seed == self.seed else f"{position}-seed-{seed}"
                yield position, seed, folder / name

    def train(
        self, folder: Path, train: Callable[[str, int, Path], TrainedModel]
    ) -> dict[str, list[TrainedModel]]:
        """The trained models by position, one for each seed.

        Args:
            folder: of the run.
            train: trains one, given position, seed and folder.
        """
        trained: dict[str, list[TrainedModel]] = {position: [] for position in self.positions}
        for position, seed, where in self.folders(folder):
            trained[position].append(train(position, seed, where))
        return trained


def mean_and_spread(values: Sequence[float], *, digits: int = 3) -> str:
    """A mean, and with several values their standard deviation.

    Args:
        values: one for each seed.
        digits: behind the point.

    >>> mean_and_spread([0.5]), mean_and_spread([0.5, 0.6])
    ('0.500', '0.550 ± 0.071')
    """
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.{digits}f}"
