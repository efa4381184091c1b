"""What the kept runs of a task say of its schemes, and which differences chance explains.

How much a figure changes with the seed is estimated from the schemes trained with several: the root
mean square of their standard deviations, s. The difference between means over m and n seeds has
the standard error `s * sqrt(1 / m + 1 / n)`; one of less than twice that is within the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, variance

from .league_grounds import GROUNDS, Figures, Ground

__all__ = ["Standings", "standings"]


@dataclass(frozen=True)
class Standings:
    """The schemes of a task that were measured.

    Args:
        ground: the task.
        figures: by column and scheme, one for each seed; the first column ranks.
        parameters: by scheme.
        steps: of each training.
        machine: on what it was done.
        intervals: by scheme, the first figure's interval over other choices of the test data;
            empty where the task has none.
    """

    ground: Ground
    figures: Figures
    parameters: Mapping[str, int]
    steps: int
    machine: Mapping[str, str]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The column that ranks."""
        return next(iter(self.figures))

    @property
    def ranked(self) -> list[str]:
        """The schemes by the first column, the best first."""
        return self.by(self.first)

    def by(self, column: str) -> list[str]:
        """The schemes by a column, the best first.

        Args:
            column: one of `figures` that is better where the first is.
        """
        means = {name: fmean(values) for name, values in self.figures[column].items()}
        return sorted(means, key=means.__getitem__, reverse=not self.ground.less_is_better)

    def spread(self, column: str) -> float | None:
        """How much a figure changes with the seed, as a standard deviation; None if unknown.

        Args:
            column: one of `figures`.
        """
        known = [variance(values) for values in self.figures[column].values() if len(values) > 1]
        return sqrt(fmean(known)) if known else None

    def tied_with_best(self, column: str) -> list[str] | None:
        """The other schemes whose difference from the best is within the noise.

        Where the intervals of the two overlap it is, too.

        Args:
            column: one of `figures`.

        Returns:
            From the best on; None where neither a spread nor intervals are known.
        """
        spread, intervals = self.spread(column), self.intervals if column == self.first else {}
        if spread is None and not intervals:
            return None
        best, *others = self.by(column)
        return [
            name for name in others
            if (spread is not None and self._is_noise(column, best, name, spread))
            or _overlap(intervals.get(best), intervals.get(name))
        ]  # fmt: skip

    def seeds(self, name: str) -> int:
        """With how many seeds a scheme was trained.

        Args:
            name: of the scheme.
        """
        return len(self.figures[self.first][name])

    def _is_noise(self, column: str, one: str, other: str, spread: float) -> bool:
        a, b = (self.figures[column][name] for name in (one, other))
        error = spread * sqrt(1 / len(a) + 1 / len(b))
        return abs(fmean(a) - fmean(b)) < 2 * error


def _overlap(a: tuple[float, float] | None, b: tuple[float, float] | None) -> bool:
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]


def standings(task: str, runs: Mapping[str, Mapping]) -> Standings | None:
    """The schemes of all runs; one that stands in several counts with the most seeds.

    Args:
        task: a name in `GROUNDS`.
        runs: what was kept, by the name of the file.

    Returns:
        None if there is no run.

    Raises:
        ValueError: if a run is of another task, has an unknown scheme, or differs in its steps or
            its tests from the first.
    """
    ground = GROUNDS[task]
    found: Standings | None = None
    for file, metrics in runs.items():
        try:
            new = _of_run(ground, metrics)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file}: must be of `relpos {task} compare`: {type(error).__name__} {error}"
            ) from None
        if wrong := [name for name in new.parameters if ground.title_of(name) is None]:
            raise ValueError(f"{file}: schemes must be those of {task}, got {wrong[0]!r}")
        found = new if found is None else _merged(found, new, file)
    return found


def _of_run(ground: Ground, metrics: Mapping) -> Standings:
    held_out = metrics["held_out"]
    return Standings(
        ground,
        ground.figures(metrics),
        {name: metrics["parameters"][name] for name in held_out},
        metrics["steps"],
        metrics["machine"],
        {
            name: (one["bleu_low"], one["bleu_high"])
            for name, one in held_out.items()
            if "bleu_low" in one
        },
    )


def _merged(one: Standings, other: Standings, file: str) -> Standings:
    for what, first, now in (
        ("steps", one.steps, other.steps),
        ("tests", ", ".join(one.figures), ", ".join(other.figures)),
    ):
        if first != now:
            raise ValueError(f"{file}: {what} must be {first} as in the first run, got {now}")
    taken = {
        name
        for name in other.parameters
        if name not in one.parameters or other.seeds(name) >= one.seeds(name)
    }
    return Standings(
        one.ground,
        {column: _over(values, other.figures[column], taken)
         for column, values in one.figures.items()},
        _over(one.parameters, other.parameters, taken),
        one.steps,
        one.machine,
        _over(one.intervals, other.intervals, taken),
    )  # fmt: skip


def _over(one: Mapping, other: Mapping, taken: set[str]) -> dict:
    return {**one, **{name: value for name, value in other.items() if name in taken}}
