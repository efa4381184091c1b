"""What the kept runs of a task say of its schemes, and which another seed would still tell apart.

The best scheme of a column is compared with each of the others by Student's paired t-test, two
sided, over the seeds that both were trained with: a seed is the same data order and the same first
numbers for all, and the test holds its level however unequal the schemes' own spreads are. Welch's
test does not with three seeds: at 0.05 / 15, and ten times the spread in one scheme, it errs more
than twice as often as it says. Bonferroni's correction divides the level by the number of schemes
compared: a scheme that in truth is the best is called worse than the one that came out best in at
most 5 % of such columns, although that one was chosen by the same figures.

Seeds are all that the test knows of: other test pieces, images or sentences are another question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

from relpos_tasks.training.settings import settings_differ

from .league_grounds import Figures, Ground

__all__ = ["LEVEL", "Standings", "Verdict", "check_alike", "conditions_of", "standings"]

LEVEL = 0.05
# What rounding leaves of equal differences, as a part of the figures.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Verdict:
    """What the seeds tell of a column; names from the best on.

    Args:
        best: of the schemes with several seeds.
        alike: schemes that are not told apart from it.
        apart: schemes that are worse by more than another seed explains.
        untested: schemes with fewer than two seeds in common with it.
    """

    best: str
    alike: Sequence[str]
    apart: Sequence[str]
    untested: Sequence[str]


@dataclass(frozen=True)
class Standings:
    """The schemes of a task that were measured.

    Args:
        ground: the task.
        figures: by column and scheme, one for each seed; the first column ranks.
        seeds: by scheme.
        parameters: by scheme.
        steps: of each training.
        conditions: all else that the runs have in common, as far as it is known.
        unknown: the files of runs from before their settings were kept.
        intervals: by scheme, the first figure's interval over other choices of the test data, with
            the first seed; empty where the task has none.
        differences: by scheme, the first figure less that of the scheme `from`, likewise.
    """

    ground: Ground
    figures: Figures
    seeds: Mapping[str, Sequence[int]]
    parameters: Mapping[str, int]
    steps: int
    conditions: dict[str, Any]
    unknown: Sequence[str] = ()
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    differences: Mapping[str, Mapping] = field(default_factory=dict)

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

    def verdict(self, column: str) -> Verdict | None:
        """Which schemes another seed would still tell apart from the best.

        Args:
            column: one of `figures`.

        Returns:
            None where no two schemes have two seeds in common.
        """
        best = next((name for name in self.by(column) if len(self.seeds[name]) > 1), None)
        if best is None:
            return None
        others = [name for name in self.by(column) if name != best]
        less = {name: self._differences(column, name, best) for name in others}
        tested = [name for name in others if len(less[name]) > 1]
        if not tested:
            return None
        apart = [name for name in tested if self._is_worse(column, less[name], LEVEL / len(tested))]
        return Verdict(
            best,
            [name for name in tested if name not in apart],
            apart,
            [name for name in others if name not in tested],
        )

    def _differences(self, column: str, one: str, other: str) -> list[float]:
        """One scheme's figures less another's, for the seeds that both have."""
        a, b = (
            dict(zip(self.seeds[name], self.figures[column][name], strict=True))
            for name in (one, other)
        )
        return [a[seed] - b[seed] for seed in self.seeds[one] if seed in b]

    def _is_worse(self, column: str, differences: Sequence[float], level: float) -> bool:
        """Whether they are on the worse side of 0, by Student's t-test of two sides."""
        n, spread = len(differences), stdev(differences)
        largest = max(abs(value) for of in self.figures[column].values() for value in of)
        if spread <= _ROUNDING * largest:
            # Differences that are all the same say nothing of how much they change.
            return False
        mean = fmean(differences)
        worse = mean > 0 if self.ground.less_is_better else mean < 0
        return worse and abs(mean) > float(t.isf(level / 2, n - 1)) * spread / sqrt(n)


def standings(ground: Ground, runs: Mapping[str, Mapping]) -> Standings | None:
    """The schemes of all runs; one that stands in several counts with the most seeds.

    Args:
        ground: the task.
        runs: what was kept, by the name of the file.

    Returns:
        None if there is no run.

    Raises:
        ValueError: if a run is of another task, has an unknown scheme, or differs from the first
            in anything but its seeds and schemes.
    """
    found: Standings | None = None
    for file, metrics in runs.items():
        try:
            new = _of_run(ground, metrics, file)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file}: must be of `relpos {ground.task} compare{ground.options}`: "
                f"{type(error).__name__} {error}"
            ) from None
        if wrong := [name for name in new.parameters if ground.title_of(name) is None]:
            raise ValueError(f"{file}: schemes must be those of {ground.task}, got {wrong[0]!r}")
        found = new if found is None else _merged(found, new, file)
    return found


def check_alike(
    one: Standings, other: Standings, file: str, *, options: Sequence[str] = ()
) -> None:
    """Raise unless two runs differ in seeds and schemes alone, as far as that is known.

    Args:
        one: the first.
        other: of the file.
        file: its name, for the message.
        options: settings that may differ too.

    Raises:
        ValueError: that says what differs.
    """
    then, now = (_all_conditions(it, options) for it in (one, other))
    known = then.keys() & now.keys()
    if difference := settings_differ(
        {name: then[name] for name in known}, {name: now[name] for name in known}
    ):
        raise ValueError(f"{file}: must be made as the runs before it: {difference}")


def _all_conditions(one: Standings, without: Sequence[str]) -> dict[str, Any]:
    found = {"steps": one.steps, "columns": [*one.figures]} | one.conditions
    if "settings" in found:
        found["settings"] = {k: v for k, v in found["settings"].items() if k not in without}
    return found


def _of_run(ground: Ground, metrics: Mapping, file: str) -> Standings:
    held_out: Mapping[str, Mapping] = metrics["held_out"]
    seeds: Sequence[int] = metrics["seeds"]
    figures = ground.figures(metrics)
    for column in figures.values():
        for name, values in column.items():
            if len(values) != len(seeds):
                raise ValueError(
                    f"{file}: {name} must have {len(seeds)} figures, one for each seed, got "
                    f"{len(values)}"
                )
    scores = {}
    if ground.first_scores is not None:
        scores = {name: ground.first_scores(found) for name, found in held_out.items()}
    return Standings(
        ground,
        figures,
        dict.fromkeys(held_out, seeds),
        {name: metrics["parameters"][name] for name in held_out},
        metrics["steps"],
        conditions_of(metrics),
        () if "settings" in metrics and "model" in metrics else (file,),
        {name: (one["bleu_low"], one["bleu_high"]) for name, one in scores.items()},
        {name: one["difference"] for name, one in scores.items() if "difference" in one},
    )


def conditions_of(metrics: Mapping) -> dict[str, Any]:
    """What a run says of how it was trained and measured, beside seeds and schemes.

    Args:
        metrics: of the kept run.
    """
    found = {name: metrics[name] for name in ("model", "canvases") if name in metrics}
    if "precision" in metrics.get("machine", {}):
        found["precision"] = metrics["machine"]["precision"]
    if "settings" in metrics:
        settings = metrics["settings"]
        training = {k: v for k, v in settings["training"].items() if k != "seed"}
        found["settings"] = settings | {"training": training}
    if "data" in metrics:
        # The same data may lie in a folder of another name.
        found["data"] = {k: v for k, v in metrics["data"].items() if k != "name"}
    if "translations" in metrics:
        measured = metrics["translations"]
        found["translations"] = {k: measured[k] for k in ("sentences", "signatures")}
    return found


def _merged(one: Standings, other: Standings, file: str) -> Standings:
    check_alike(one, other, file)
    for name in one.parameters.keys() & other.parameters.keys():
        if one.parameters[name] != other.parameters[name]:
            raise ValueError(
                f"{file}: {name} must have {one.parameters[name]:,} parameters as in the runs "
                f"before it, got {other.parameters[name]:,}"
            )
    taken = {
        name
        for name in other.parameters
        if name not in one.parameters or len(other.seeds[name]) >= len(one.seeds[name])
    }
    return Standings(
        one.ground,
        {column: _over(values, other.figures[column], taken)
         for column, values in one.figures.items()},
        _over(one.seeds, other.seeds, taken),
        _over(one.parameters, other.parameters, taken),
        one.steps,
        {**other.conditions, **one.conditions},
        [*one.unknown, *other.unknown],
        _over(one.intervals, other.intervals, taken),
        _over(one.differences, other.differences, taken),
    )  # fmt: skip


def _over(one: Mapping, other: Mapping, taken: set[str]) -> dict:
    """What the first run says, but of schemes that are taken from the other what that one says."""
    found = {name: other.get(name) if name in taken else value for name, value in one.items()}
    found |= {name: value for name, value in other.items() if name in taken}
    return {name: value for name, value in found.items() if value is not None}
