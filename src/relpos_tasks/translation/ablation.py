"""Shaw's ablations among the positions of a comparison, beside what the paper reports of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..report.blocks import Block, FigureBlock, TableBlock, TableRow, TextBlock
from ..training.comparison import mean_and_spread
from .figures import ablation_figure
from .paper import BLEU_BY_DISTANCE, BLEU_BY_TABLES, WHERE
from .positions import NAMES, distances, position_options
from .results import Translations

__all__ = ["ablation_blocks", "tables_of"]

# A curve needs as many points.
_LEAST = 3


def tables_of(names: Sequence[str]) -> dict[str, str]:
    """The positions that differ in which of Shaw's tables there are, by the paper's words.

    Args:
        names: positions of a comparison.

    Returns:
        Of the distance that comes with keys or values alone; nothing where none does.

    >>> tables_of(["none", "shaw-2", "shaw-16", "shaw-16-keys"])
    {'keys and values': 'shaw-16', 'keys': 'shaw-16-keys', 'neither': 'none'}
    """
    clipped = {name: position_options(name) for name in names if name not in NAMES}
    alone = [
        options["max_distance"]
        for options in clipped.values()
        if not (options["relative_keys"] and options["relative_values"])
    ]
    if not alone:
        return {}
    words = {(True, True): "keys and values", (True, False): "keys", (False, True): "values"}
    found = {
        words[options["relative_keys"], options["relative_values"]]: name
        for name, options in clipped.items()
        if options["max_distance"] == max(alone)
    }
    if "none" in names:
        found["neither"] = "none"
    return {word: found[word] for word in BLEU_BY_TABLES if word in found}


def ablation_blocks(found: Translations) -> list[Block]:
    """The curve over the clipping distance and the tables, ours and the paper's.

    Args:
        found: the translations of all positions.

    Returns:
        Nothing where fewer than three distances were tried.
    """
    by_distance = distances([*found.scores])
    if len(by_distance) < _LEAST:
        return []
    by_tables = tables_of([*found.scores])
    intervals = {name: of_seeds[0].bleu for name, of_seeds in found.scores.items()}
    figure = ablation_figure(
        {k: intervals[name] for k, name in by_distance.items()},
        {word: intervals[name] for word, name in by_tables.items()},
    )
    blocks: list[Block] = [
        TextBlock(
            f"BLEU over the clipping distance k, the farthest offset with a row of its own. {WHERE}"
            ": other text, other sizes and another measure, so that the two columns compare in "
            "shape and not in height."
        ),
        FigureBlock(
            figure,
            "BLEU over the clipping distance, here and in the paper",
            "Left: measured here, with intervals of 95 % (the first seed). Right: the paper's.",
        ),
        _table("k", found, by_distance, BLEU_BY_DISTANCE),
    ]
    if by_tables:
        blocks.append(_table("tables", found, by_tables, BLEU_BY_TABLES))
    return blocks


def _table(
    column: str,
    found: Translations,
    measured: Mapping[int, str] | Mapping[str, str],
    paper: Mapping[int, float] | Mapping[str, float],
) -> TableBlock:
    """What was measured here beside what the paper has of it."""
    theirs = {str(key): f"{bleu:.1f}" for key, bleu in paper.items()}
    return TableBlock(
        [column, "BLEU, measured here", WHERE],
        [
            TableRow([str(key), bleu_of(found, name), theirs.get(str(key))])
            for key, name in measured.items()
        ],
    )


def bleu_of(found: Translations, name: str) -> str:
    """BLEU with its interval or, of several seeds, with their standard deviation.

    Args:
        found: the translations.
        name: of the position.
    """
    if len(found.bleu[name]) == 1:
        return str(found.scores[name][0].bleu)
    return mean_and_spread(found.bleu[name], digits=1)
