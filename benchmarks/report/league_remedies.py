"""Schemes that get worse beyond the length of training, with and without an option against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.report.wording import listed
from relpos_tasks.training.comparison import mean_and_spread

from .cells import format_change, markdown_table
from .league_standings import Standings, check_alike

__all__ = ["REMEDIES", "Remedy", "change_of", "remedies_of", "remedies_section"]

REMEDIES = "league_music_remedies.json"
# The settings that are the remedies.
OPTIONS = ("max_distance", "random_start")

ABOUT = """\
A table with a row for every offset or position of the training window has far rows that few tokens
select, and all that lies beyond the window shares its last row (or has none, where a scheme ends
there). Two options are meant against that:
`--max-distance K` gives offsets beyond K one row (or none, where a scheme ends there) from the
start, and `--random-start` lets absolute positions begin anywhere in four windows while training.
Both rows of a scheme have the same seeds. The last column is the longest length less the
shortest."""


@dataclass(frozen=True)
class Remedy:
    """A scheme with its option and without.

    Args:
        name: of the scheme.
        option: as it is given to the command.
        without: the figures of each column, one for each seed that both have.
        given: the same with the option.
    """

    name: str
    option: str
    without: Mapping[str, Sequence[float]]
    given: Mapping[str, Sequence[float]]


def remedies_of(plain: Standings, mended: Standings) -> list[Remedy]:
    """Every scheme that was trained with an option.

    Args:
        plain: the league's.
        mended: those trained with options.

    Raises:
        ValueError: if the league lacks a scheme or has such an option itself, or the runs differ in
            more than the options.
    """
    if "settings" not in mended.conditions:
        raise ValueError(f"{REMEDIES}: must say its settings, got none")
    check_alike(plain, mended, REMEDIES, options=OPTIONS)
    before = plain.conditions.get("settings", {})
    if given := [option for option in OPTIONS if before.get(option)]:
        raise ValueError(
            f"{REMEDIES}: must stand beside a league without {given[0]}, got {before[given[0]]}"
        )
    settings = mended.conditions["settings"]
    found = []
    for name in mended.figures[mended.first]:
        if name not in plain.figures[plain.first]:
            raise ValueError(f"{REMEDIES}: schemes must be in the league, got {name!r}")
        common = [seed for seed in mended.seeds[name] if seed in plain.seeds[name]]
        if not common:
            theirs, own = (listed([*map(str, one.seeds[name])]) for one in (plain, mended))
            raise ValueError(
                f"{REMEDIES}: {name} must have a seed of the league's ({theirs}), got {own}"
            )
        without, given = (_figures(one, name, common) for one in (plain, mended))
        found.append(Remedy(name, _option(name, settings), without, given))
    return found


def remedies_section(plain: Standings, mended: Standings) -> str:
    """A table: each scheme of the second run as in the league, and with its option.

    Args:
        plain: the league's.
        mended: those trained with options.

    Raises:
        ValueError: as `remedies_of`.
    """
    rows = []
    for remedy in remedies_of(plain, mended):
        for figures, option in ((remedy.without, ""), (remedy.given, f" `{remedy.option}`")):
            rows.append([
                f"`{remedy.name}`{option}",
                *map(mean_and_spread, figures.values()),
                format_change(change_of(figures)),
            ])  # fmt: skip
    head = ["scheme", *mended.figures, "longest - shortest"]
    return f"{ABOUT}\n\n{markdown_table(head, rows, 1)}"


def change_of(figures: Mapping[str, Sequence[float]]) -> float:
    """By how much more nats the longest length has than the shortest.

    Args:
        figures: by column, all held-out music first and then lengths that rise.
    """
    _, shortest, *_, longest = map(fmean, figures.values())
    return longest - shortest


def _figures(one: Standings, name: str, seeds: Sequence[int]) -> dict[str, list[float]]:
    return {
        column: [value for seed, value in zip(one.seeds[name], found[name], strict=True)
                 if seed in seeds]
        for column, found in one.figures.items()
    }  # fmt: skip


def _option(name: str, settings: Mapping) -> str:
    """What is to mend a scheme: at the input another start, in the blocks a clip."""
    scheme = POSITIONS[name]
    if scheme.at_input is not None:
        if not settings["random_start"]:
            raise ValueError(f"{REMEDIES}: {name} must be trained with --random-start")
        return "--random-start"
    if not scheme.clipped:
        raise ValueError(f"{REMEDIES}: schemes must be such as an option changes, got {name!r}")
    if settings["max_distance"] is None:
        raise ValueError(f"{REMEDIES}: {name} must be trained with --max-distance")
    return f"--max-distance {settings['max_distance']}"
