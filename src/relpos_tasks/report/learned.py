"""The figures of what a model's tables of positions have learned."""

from __future__ import annotations

from torch import nn

from relpos.plots import cosine_figure, norms_figure, table_rows
from relpos.plots.style import svg

from .blocks import FigureBlock

__all__ = ["learned_rows"]


def learned_rows(model: nn.Module, title: str, *, look_for: str = "") -> list[FigureBlock]:
    """How alike the rows of any two offsets or positions are, and how long those of offsets.

    Args:
        model: with Huang's or Shaw's tables of keys, or learned absolute positions.
        title: of the model.
        look_for: a sentence on what there is to see in rows of offsets.

    Returns:
        No figure where no two rows were learned.
    """
    rows, first, relative = table_rows(model)
    if not len(rows) or rows.shape[1] < 2:
        return []
    if not relative:
        return [
            FigureBlock(
                svg(cosine_figure(rows, first, relative=False)),
                f"{title}: cosine similarity of rows",
                f"{title}: cosine similarity between the rows of any two positions.",
                small=len(rows) == 1,
            )
        ]
    return [
        FigureBlock(
            svg(cosine_figure(rows, first, relative=True)),
            f"{title}: cosine similarity of rows",
            f"{title}: cosine similarity between the rows of any two offsets, layer by layer, as "
            f"in Wang and Chen (2020). {look_for}".rstrip(),
            small=len(rows) == 1,
        ),
        FigureBlock(
            svg(norms_figure(rows, first, relative=True)),
            f"{title}: length over the offset",
            f"{title}: how long each relative row is, which is what a token looks for by "
            "distance alone. Every row began with length 1 on average.",
        ),
    ]
