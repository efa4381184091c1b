"""The league in one table, as the README has it: music, the longest inputs, and the price."""

from __future__ import annotations

from collections.abc import Mapping

from relpos_tasks.training.comparison import mean_and_spread

from .cells import format_ratio, markdown_table
from .league_grounds import GROUNDS
from .league_standings import standings

__all__ = ["league_excerpt"]


def league_excerpt(runs: Mapping[str, Mapping], steps: Mapping | None) -> str:
    """Held out, at both ends of the windows, and what a step costs, of every scheme of music.

    Args:
        runs: what was kept of music, by the name of the file.
        steps: the result of `benchmarks.steps`; None where there is none yet.
    """
    music = standings(GROUNDS["music"], runs)
    if music is None:
        return "Not measured yet."
    held_out, shortest, *_, longest = music.figures
    columns = (held_out, shortest, longest)
    rows = [] if steps is None else [one for one in steps["steps"] if one["task"] == "music"]
    prices = {row["scheme"]: format_ratio(row["ratio"]["median"]) for row in rows}
    table = [
        [
            f"`{name}`: {music.ground.title_of(name)}",
            *(mean_and_spread(music.figures[column][name]) for column in columns),
            prices.get(name, "not measured"),
        ]
        for name in music.ranked
    ]
    head = ["scheme", held_out, f"read {shortest} at a time", f"read {longest} at a time", "step"]
    return (
        f"Nats per token after {music.steps:,} steps on {shortest} at a time: on all held-out "
        f"pieces, and on those long enough for {longest} with windows of either length, on the "
        "same tokens; and what a step costs as a multiple of one without positions. With ± the "
        "mean and the standard deviation over seeds, without it one seed:\n\n"
        f"{markdown_table(head, table)}"
    )
