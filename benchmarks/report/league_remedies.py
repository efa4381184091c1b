"""Schemes that get worse beyond the length of training, with and without an option against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.training.comparison import mean_and_spread

from .cells import format_change, markdown_table
from .league_standings import Standings, check_alike

__all__ = ["REMEDIES", "remedies_section"]

REMEDIES = "league_music_remedies.json"
# The settings that are the remedies.
OPTIONS = ("max_distance", "random_start")

ABOUT = """\
Tables with a row for every offset or position have rows that are met seldom or never beyond the
length of training. Two options are meant for that, chosen on the validation pieces:
`--max-distance K` lets all offsets beyond K share the last row, and `--random-start` lets absolute
positions begin anywhere in four windows while training. The last column is the longest length less
the shortest"""


def remedies_section(plain: Standings, mended: Standings) -> str:
    """A table: each scheme of the second run as in the league, and with its option.

    Args:
        plain: the league's.
        mended: those trained with options.

    Raises:
        ValueError: if the league lacks a scheme, or the runs differ in more than the options.
    """
    if "settings" not in mended.conditions:
        raise ValueError(f"{REMEDIES}: must say its settings, got none")
    check_alike(plain, mended, REMEDIES, options=OPTIONS)
    settings = mended.conditions["settings"]
    columns = [column for column in mended.figures if column != mended.first]
    rows, better, not_better = [], [], []
    for name in mended.figures[mended.first]:
        if name not in plain.figures[plain.first]:
            raise ValueError(f"{REMEDIES}: schemes must be in the league, got {name!r}")
        changes = []
        for one, option in ((plain, None), (mended, _option(name, settings))):
            figures = [one.figures[column][name] for column in columns]
            changes.append(fmean(figures[-1]) - fmean(figures[0]))
            rows.append(
                [
                    f"`{name}`" + (f" `{option}`" if option else ""),
                    mean_and_spread(one.figures[one.first][name]),
                    *map(mean_and_spread, figures),
                    format_change(changes[-1]),
                ]
            )
        (better if round(changes[1] - changes[0], 3) < 0 else not_better).append(name)
    head = ["scheme", mended.first, *columns, "longest - shortest"]
    return f"{ABOUT}{_said(better, not_better)}.\n\n{markdown_table(head, rows, 1)}"


def _said(better: Sequence[str], not_better: Sequence[str]) -> str:
    """For which schemes the last column is less with the option."""
    names = [f"for {', '.join(f'`{name}`' for name in those)}" for those in (better, not_better)]
    if not not_better:
        return f": with its option it is less {names[0]}"
    if not better:
        return f": the option does not make it less {names[1]}"
    return f": with its option it is less {names[0]}, and not {names[1]}"


def _option(name: str, settings: Mapping) -> str:
    """What is to mend a scheme: at the input another start, in the blocks a clip."""
    if POSITIONS[name].at_input is not None:
        if not settings["random_start"]:
            raise ValueError(f"{REMEDIES}: {name} must be trained with --random-start")
        return "--random-start"
    if settings["max_distance"] is None:
        raise ValueError(f"{REMEDIES}: {name} must be trained with --max-distance")
    return f"--max-distance {settings['max_distance']}"
