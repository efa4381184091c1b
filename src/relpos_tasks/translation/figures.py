"""The figures that only translation has, as SVG.

The rows of both sides are drawn by `relpos.plots.norms_figure(*table_rows(model.encoder))`, and
likewise with the decoder.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from numpy import ndarray

from relpos.plots.style import GREY, INK, WIDTH, new_figure, svg

from ..report.colors import series_colors
from .paper import BLEU_BY_DISTANCE, BLEU_BY_TABLES, WHERE
from .scores import Buckets, Interval

__all__ = ["ablation_figure", "bleu_by_length_figure", "sentence_attention_figure"]

# Heads beside each other.
_COLUMNS = 2


def bleu_by_length_figure(found: Buckets, *, xlabel: str) -> str:
    """BLEU of some systems by the length of sentences, with intervals of 95 %.

    Args:
        found: what `bleu_by_length` returned.
        xlabel: the length and its unit.
    """
    colors = series_colors(found.bleu)
    at = np.arange(len(found.names), dtype=float)
    # Beside each other, so that each interval is seen.
    beside = (np.arange(len(found.bleu)) - (len(found.bleu) - 1) / 2) * 0.12
    with new_figure(WIDTH, 3.2) as (figure, (axes,)):
        for (name, intervals), shift in zip(found.bleu.items(), beside, strict=True):
            _draw_intervals(axes, at + shift, intervals, color=colors[name], label=name)
        counted = zip(found.names, found.sentences, strict=True)
        labels = [f"{name}\n{count:,}" for name, count in counted]
        axes.set_xticks(at, labels, fontsize=10)
        axes.set(xlabel=f"{xlabel}; below it how many sentences", ylabel="BLEU")
        axes.set_xlim(-0.5, len(at) - 0.5)
        axes.legend(fontsize=10)
        return svg(figure)


def ablation_figure(
    by_distance: Mapping[int, Interval], by_tables: Mapping[str, Interval] | None = None
) -> str:
    """BLEU over the clipping distance k, and by which tables there are, beside the paper's.

    Args:
        by_distance: what was measured, by k.
        by_tables: by the keys of `BLEU_BY_TABLES`, or some of them; None draws none.
    """
    rows: list[tuple[str, Mapping[Any, Interval], Mapping[Any, float]]] = [
        ("clipping distance k", by_distance, BLEU_BY_DISTANCE)
    ]
    if by_tables:
        rows.append(("tables of relative positions", by_tables, BLEU_BY_TABLES))
    with new_figure(WIDTH, 2.9 * len(rows), len(rows), 2) as (figure, panels):
        for row, (xlabel, measured, paper) in enumerate(rows):
            ours, theirs = panels[2 * row : 2 * row + 2]
            values = list(measured.values())
            # A distance is a number, which a line may join; tables are not.
            line = "-" if measured is by_distance else "none"
            color = series_colors(["measured"])["measured"]
            _draw_intervals(
                ours, np.arange(len(values), dtype=float), values, color=color, line=line
            )
            theirs.plot(list(paper.values()), color=GREY, linestyle=line, marker="s", markersize=4)
            for axes, names in ((ours, measured), (theirs, paper)):
                labels = [str(name).replace(" and ", "\nand ") for name in names]
                axes.set_xticks(range(len(labels)), labels, fontsize=9.5)
                axes.margins(x=0.12)
                axes.set_ylabel("BLEU", fontsize=10)
                axes.tick_params(axis="y", labelsize=9.5)
                axes.set_xlabel(xlabel, fontsize=10)
        panels[0].set_title("measured here", fontsize=10.5)
        panels[1].set_title(WHERE, fontsize=10.5)
        return svg(figure)


def sentence_attention_figure(
    weights: Float[ndarray, "h i j"], queries: Sequence[str], keys: Sequence[str]
) -> str:
    """The weights of each head as a map with its tokens on the axes.

    Args:
        weights: of one layer on one sentence; each row sums to 1.
        queries: the tokens that look, one for each i.
        keys: the tokens that they look at, one for each j.

    Raises:
        ValueError: if there are not as many tokens as weights, or no weights.
    """
    if not weights.size or weights.shape[1:] != (len(queries), len(keys)):
        raise ValueError(
            "sentence_attention_figure: weights must be (h, i, j) with "
            f"i={len(queries)}, j={len(keys)}, got {weights.shape}"
        )
    heads = len(weights)
    columns = min(heads, _COLUMNS)
    lines = -(-heads // columns)
    # A dollar sign is a dollar sign.
    plain: Any = {"fontsize": min(9.0, max(4.0, 150 / max(weights.shape[1:]))), "parse_math": False}
    with new_figure(WIDTH, lines * (WIDTH / columns + 0.35), lines, columns) as (figure, panels):
        # Small weights are most of them: the root lets them be seen.
        norm = PowerNorm(0.5, vmin=0, vmax=max(float(weights.max()), 1e-12))
        for spare in panels[heads:]:
            spare.set_visible(False)
        for head, axes in enumerate(panels[:heads]):
            axes.grid(visible=False)
            axes.imshow(weights[head], cmap="magma_r", norm=norm, interpolation="none")
            axes.set_title(f"head {head + 1}", fontsize=9.5)
            axes.set_xticks(range(len(keys)), keys, rotation=90, **plain)
            # Once for all maps of a line.
            shown = queries if head % columns == 0 else [""] * len(queries)
            axes.set_yticks(range(len(queries)), shown, **plain)
            axes.tick_params(length=0)
        figure.supxlabel("key (looked at)", fontsize=10.5, color=INK)
        figure.supylabel("query (looks)", fontsize=10.5, color=INK)
        bar = figure.colorbar(panels[0].images[0], ax=panels, fraction=0.05, pad=0.02)
        bar.set_label("weight", fontsize=10)
        bar.ax.tick_params(labelsize=9)
        with warnings.catch_warnings():
            # A language that the font has no letters for: boxes are drawn.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            return svg(figure)


def _draw_intervals(
    axes: Axes,
    at: Float[ndarray, "n"],
    intervals: Sequence[Interval],
    *,
    color: str,
    label: str | None = None,
    line: str = "-",
) -> None:
    values = np.array([one.value for one in intervals])
    below = values - np.array([one.low for one in intervals])
    above = np.array([one.high for one in intervals]) - values
    axes.errorbar(
        at,
        values,
        # The value may lie beside the middle 95 % of what is drawn.
        yerr=np.maximum([below, above], 0),
        color=color,
        linestyle=line,
        linewidth=1.8,
        elinewidth=1.2,
        capsize=3,
        marker="o",
        markersize=4.5,
        label=label,
    )
