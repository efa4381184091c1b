"""Schemes that get worse beyond the length of training, with and without an option against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.training.comparison import mean_and_spread

from .cells import format_change, markdown_table
from .league_standings import Standings, check_alike

__all__ = ["REMEDIES", "Remedy", "remedies_of", "remedies_section"]

REMEDIES = "league_music_remedies.json"
# The settings that are the remedies.
OPTIONS = ("max_distance", "random_start")

ABOUT = """\
A table with a row for every offset or position of the training window has far rows that few tokens
select, and all that lies beyond the window shares its last row. Two options are meant against that:
`--max-distance K` gives offsets beyond K one row (or none, where a scheme ends there) from the
start, and `--random-start` lets absolute positions begin anywhere in four windows while training.
The last column is the longest length less the shortest."""


@dataclass(frozen=True)
class Remedy:
    """A scheme with its option and without.

    Args:
        name: of the scheme.
        option: as it is given to the command.
        without: means of the first column, of the shortest length and of the longest.
        given: the same with the option.
    """

    name: str
    option: str
    without: tuple[float, float, float]
    given: tuple[float, float, float]


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
        found.append(
            Remedy(name, _option(name, settings), _figures(plain, name), _figures(mended, name))
        )
    return found


def remedies_section(plain: Standings, mended: Standings) -> str:
    """A table: each scheme of the second run as in the league, and with its option.

    Args:
        plain: the league's.
        mended: those trained with options.

    Raises:
        ValueError: as `remedies_of`.
    """
    columns = _columns(mended)
    rows = []
    for remedy in remedies_of(plain, mended):
        for one, option in ((plain, ""), (mended, f" `{remedy.option}`")):
            figures = [mean_and_spread(one.figures[column][remedy.name]) for column in columns]
            first = mean_and_spread(one.figures[one.first][remedy.name])
            _, shortest, longest = remedy.given if option else remedy.without
            change = format_change(longest - shortest)
            rows.append([f"`{remedy.name}`{option}", first, *figures, change])
    head = ["scheme", mended.first, *columns, "longest - shortest"]
    return f"{ABOUT}\n\n{markdown_table(head, rows, 1)}"


def _columns(one: Standings) -> list[str]:
    return [column for column in one.figures if column != one.first]


def _figures(one: Standings, name: str) -> tuple[float, float, float]:
    columns: Sequence[str] = _columns(one)
    first, shortest, longest = (
        fmean(one.figures[column][name]) for column in (one.first, columns[0], columns[-1])
    )
    return first, shortest, longest


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
