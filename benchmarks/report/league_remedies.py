"""Schemes that get worse beyond the length of training, with and without what mends them."""

from __future__ import annotations

from collections.abc import Mapping

from relpos_tasks.models.positions import POSITIONS

from .cells import format_change, markdown_table, mean_over_seeds
from .league_standings import Standings

__all__ = ["REMEDIES", "remedies_section"]

REMEDIES = "league_music_remedies.json"

ABOUT = """\
Tables with a row for every offset or position have rows that are met seldom or never beyond the
length of training. Two options help, chosen on the validation pieces: `--max-distance K` lets all
offsets beyond K share the last row, and `--random-start` lets absolute positions begin anywhere in
four windows while training. The last column is the longest length less the shortest."""


def remedies_section(plain: Standings, mended: Standings, settings: Mapping) -> str:
    """A table: each scheme of the second run as in the league, and with its option.

    Args:
        plain: the league's.
        mended: those trained with options.
        settings: of the latter's training, as `metrics.json` says them.

    Raises:
        ValueError: if the league lacks a scheme.
    """
    columns = [column for column in mended.figures if column != mended.first]
    rows = []
    for name in mended.figures[mended.first]:
        if name not in plain.figures[plain.first]:
            raise ValueError(f"{REMEDIES}: schemes must be in the league, got {name!r}")
        for one, option in ((plain, None), (mended, _option(name, settings))):
            figures = [one.figures[column][name] for column in columns]
            first, last = (sum(values) / len(values) for values in (figures[0], figures[-1]))
            rows.append(
                [
                    f"`{name}`" + (f" `{option}`" if option else ""),
                    mean_over_seeds(one.figures[one.first][name]),
                    *map(mean_over_seeds, figures),
                    format_change(last - first),
                ]
            )
    head = ["scheme", mended.first, *columns, "longest - shortest"]
    return f"{ABOUT}\n\n{markdown_table(head, rows, 1)}"


def _option(name: str, settings: Mapping) -> str:
    """What mends a scheme: at the input another start, in the blocks a clip."""
    if POSITIONS[name].at_input is not None:
        if not settings["random_start"]:
            raise ValueError(f"{REMEDIES}: {name} must be trained with --random-start")
        return "--random-start"
    if settings["max_distance"] is None:
        raise ValueError(f"{REMEDIES}: {name} must be trained with --max-distance")
    return f"--max-distance {settings['max_distance']}"
