"""Shaw's ablations in the league of translation, beside what the paper reports of them."""

from __future__ import annotations

from collections.abc import Mapping

from relpos_tasks.training.comparison import mean_and_spread
from relpos_tasks.translation.ablation import tables_of
from relpos_tasks.translation.paper import BLEU_BY_DISTANCE, BLEU_BY_TABLES, WHERE
from relpos_tasks.translation.positions import distances

from .cells import markdown_table
from .league_standings import Standings

__all__ = ["ablation_section"]

ABOUT = f"""\
The clipping distance k is the farthest offset with a row of its own; the tables are those of keys
and of values, at the largest k. In brackets the middle 95 % when sentences are drawn anew, with the
first seed. {WHERE}: other text, other sizes and another measure, so that the columns compare in
shape and not in height."""
_BLEU = "BLEU"


def ablation_section(translation: Standings) -> str:
    """Two tables, over the clipping distance and of keys and values alone; "" where none was tried.

    Args:
        translation: of the league.
    """
    names = [*translation.parameters]
    by_distance, by_tables = distances(names), tables_of(names)
    tables = [
        _table(head, translation, measured, paper)
        for head, measured, paper in (
            ("k", by_distance, BLEU_BY_DISTANCE),
            ("tables", by_tables, BLEU_BY_TABLES),
        )
        if len(measured) > 1
    ]
    return "\n\n".join([ABOUT, *tables]) if tables else ""


def _table(
    head: str,
    translation: Standings,
    measured: Mapping[int, str] | Mapping[str, str],
    paper: Mapping[int, float] | Mapping[str, float],
) -> str:
    theirs = {str(key): f"{bleu:.1f}" for key, bleu in paper.items()}
    rows = []
    for key, name in measured.items():
        low, high = translation.intervals[name]
        bleu = mean_and_spread(translation.figures[_BLEU][name], digits=1)
        rows.append([str(key), f"{bleu} ({low:.1f} to {high:.1f})", theirs.get(str(key), "-")])
    return markdown_table([head, "BLEU, measured here", WHERE], rows, 1)
