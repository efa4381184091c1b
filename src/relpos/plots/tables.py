"""The rows of position tables: their numbers, their norms, their cosine similarity.

Cosine similarity between the rows of any two positions is figure 1 of Wang and Chen (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from numpy import ndarray
from torch import nn

from ..positions import Position
from .rows import Rows, effect_of, head_label, rows_of
from .style import DIVERGING, INK, WIDTH, integer_axis, new_figure, ramp, styled, subfigures

__all__ = ["cosine_figure", "norms_figure", "table_figure"]

# The share of the numbers that sets the colours: a few far beyond would make all others pale.
_SHARE_SHOWN = 0.995


def table_figure(
    positions: nn.Module | Mapping[str, nn.Module],
    *,
    length: int,
    heads: int,
    head_dim: int,
    causal: bool = False,
    seed: int = 0,
) -> Figure:
    """Tables row by row, the rows' norms and cosine similarity, and what they add to scores.

    Args:
        positions: a scheme, or several by name (`{"layer 1": ...}`).
        length: tokens.
        heads: query heads.
        head_dim: width of one head.
        causal: whether scores of keys ahead of the query are left out.
        seed: of the queries and keys whose scores are shown.

    Raises:
        ValueError: if a size is below 1, or there is nothing to draw.

    >>> from relpos.positions import Shaw
    >>> figure = table_figure(Shaw(8, 2), length=6, heads=1, head_dim=8)
    """
    by_name = positions if isinstance(positions, Mapping) else {"": positions}
    found: list[Rows] = []
    effects: list[tuple[str, ndarray]] = []
    for name, position in by_name.items():
        sizes = {"length": length, "heads": heads, "head_dim": head_dim, "seed": seed}
        rows = rows_of(position, **sizes)
        found += [replace(one, name=f"{name} {one.name}".strip()) for one in rows]
        if isinstance(position, Position):
            scores = effect_of(position, **sizes)
            effects += [
                (head_label(name, head, len(scores)).strip(", "), one)
                for head, one in enumerate(scores)
            ]
    sections = _sections(found, effects, heads, causal=causal)
    if not sections:
        raise ValueError("table_figure: positions must have tables or act on scores, got none")
    heights = [height for height, _ in sections]
    with styled():
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        for part, (_, draw) in zip(subfigures(figure, heights), sections, strict=True):
            draw(part)
    return figure


def norms_figure(rows: Float[ndarray, "layer r d"], first: int, *, relative: bool) -> Figure:
    """The length of each row over its offset or position, one line per layer.

    Args:
        rows: what `table_rows` found.
        first: the offset or position of the first row.
        relative: whether the rows belong to offsets.
    """
    with new_figure(WIDTH, 3.0) as (figure, (axes,)):
        several = len(rows) > 1
        tables = [
            Rows(f"layer {n + 1}" if several else "", one, first, relative)
            for n, one in enumerate(rows)
        ]
        _norm_lines(axes, tables)
        axes.set(xlabel=_axis(tables), ylabel="length of the row")
        return figure


def cosine_figure(rows: Float[ndarray, "layer r d"], first: int, *, relative: bool) -> Figure:
    """Cosine similarity between any two rows, one panel per layer (Wang and Chen 2020, figure 1).

    Args:
        rows: what `table_rows` found.
        first: the offset or position of the first row.
        relative: whether the rows belong to offsets.
    """
    columns = min(len(rows), 2)
    lines = -(-len(rows) // columns)
    size = (3.6, 3.0) if len(rows) == 1 else (WIDTH, 0.8 + 2.3 * lines)
    with new_figure(*size, lines, columns) as (figure, panels):
        for spare in panels[len(rows) :]:
            spare.set_visible(False)
        tables = [Rows("", one, first, relative) for one in rows]
        images = [_cosine_image(axes, one) for axes, one in zip(panels, tables, strict=False)]
        if len(rows) > 1:
            for layer, axes in enumerate(panels[: len(rows)]):
                axes.set_title(f"layer {layer + 1}")
        figure.supxlabel(_axis(tables), fontsize=11, color=INK)
        figure.colorbar(images[0], ax=panels[: len(rows)], shrink=0.8, label="cosine similarity")
        return figure


def _sections(
    found: Sequence[Rows], effects: Sequence[tuple[str, ndarray]], heads: int, *, causal: bool
) -> list[tuple[float, Callable[[SubFigure], None]]]:
    """The parts of `table_figure`: their heights in inches, and what draws them."""
    vectors = [one for one in found if one.values.ndim == 2 and not one.joint_bias]
    scalars = [one for one in found if one.values.ndim == 1]
    joint_bias = [one for one in found if one.joint_bias]
    sections: list[tuple[float, Callable[[SubFigure], None]]] = []
    if vectors:
        sections += [
            (_height(len(vectors), 1.5), lambda part: _rows_part(part, vectors)),
            (2.6, lambda part: _norms_part(part, vectors)),
            (_height(len(vectors), 1.9), lambda part: _cosine_part(part, vectors)),
        ]
    if scalars:
        sections.append((3.0, lambda part: _scalars_part(part, scalars)))
    if joint_bias:
        sections.append(
            (_height(len(joint_bias), 1.7), lambda part: _joint_bias_part(part, joint_bias))
        )
    if effects:
        # The heads of a layer beside each other, where they fit.
        columns = heads if 1 < heads <= 4 and len(effects) > heads else _columns(len(effects))
        height = _height(len(effects), 1.9, columns)
        sections.append((height, lambda part: _effect_part(part, effects, columns, causal=causal)))
    return sections


def _rows_part(part: SubFigure, vectors: Sequence[Rows]) -> None:
    limit, extend = _limit([rows.values for rows in vectors])
    panels = _panels(part, "Rows of the table", len(vectors))
    for axes, rows in zip(panels, vectors, strict=True):
        axes.imshow(
            rows.values.T,
            aspect="auto",
            cmap=DIVERGING,
            vmin=-limit,
            vmax=limit,
            extent=(rows.first - 0.5, rows.last + 0.5, rows.values.shape[1] - 0.5, -0.5),
            interpolation="none",
        )
        _tidy(axes, rows.name)
    _finish(part, panels, x=_axis(vectors), y="dimension", bar="entry", extend=extend)


def _norms_part(part: SubFigure, vectors: Sequence[Rows]) -> None:
    (axes,) = _panels(part, "Norm of each row", 1)
    _norm_lines(axes, vectors)
    axes.set_xlabel(_axis(vectors), fontsize=10.5)
    axes.set_ylabel("norm", fontsize=10)
    integer_axis(axes.xaxis, 8)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.tick_params(labelsize=9)


def _cosine_part(part: SubFigure, vectors: Sequence[Rows]) -> None:
    panels = _panels(part, "Cosine similarity of any two rows", len(vectors))
    for axes, rows in zip(panels, vectors, strict=True):
        _cosine_image(axes, rows)
        _tidy(axes, rows.name)
        axes.set_anchor("W" if len(vectors) == 1 else "C")
    kind = "offset" if vectors[0].relative else "position"
    _finish(part, panels, x=_axis(vectors), y=kind, bar="cosine")


def _scalars_part(part: SubFigure, scalars: Sequence[Rows]) -> None:
    (axes,) = _panels(part, "One number for each offset", 1)
    for rows, color in zip(scalars, ramp(len(scalars)), strict=True):
        at = np.arange(rows.first, rows.last + 1)
        axes.plot(at, rows.values, color=color, linewidth=1.6, label=rows.name)
    are_logits = all("bias" in rows.name for rows in scalars)
    axes.set_xlabel(_axis(scalars), fontsize=10.5)
    axes.set_ylabel("bias (logits)" if are_logits else "entry", fontsize=10)
    axes.tick_params(labelsize=9)
    integer_axis(axes.xaxis, 8)
    _legend(axes, len(scalars))


def _joint_bias_part(part: SubFigure, joint_bias: Sequence[Rows]) -> None:
    limit, extend = _limit([rows.values for rows in joint_bias])
    panels = _panels(part, "One number for each offset on the grid", len(joint_bias))
    for axes, rows in zip(panels, joint_bias, strict=True):
        down, across = (size // 2 for size in rows.values.shape)
        axes.imshow(
            rows.values,
            cmap=DIVERGING,
            vmin=-limit,
            vmax=limit,
            extent=(-across - 0.5, across + 0.5, down + 0.5, -down - 0.5),
            interpolation="none",
        )
        _tidy(axes, rows.name)
    _finish(part, panels, x="offset across", y="offset down", bar="bias (logits)", extend=extend)


def _effect_part(
    part: SubFigure, effects: Sequence[tuple[str, ndarray]], columns: int, *, causal: bool
) -> None:
    shown = [np.where(causal & _ahead(scores), np.nan, scores) for _, scores in effects]
    limit, extend = _limit(shown)
    panels = _panels(part, "Added to the scores", len(effects), columns)
    for axes, (name, _), scores in zip(panels, effects, shown, strict=True):
        axes.set_facecolor("#dfe2e7")
        axes.imshow(scores, cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="none")
        _tidy(axes, name)
        axes.set_anchor("W" if len(effects) == 1 else "C")
    _finish(part, panels, x="key", y="query", bar="logits", extend=extend)


def _panels(part: SubFigure, title: str, count: int, columns: int | None = None) -> list[Axes]:
    part.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    columns = columns or _columns(count)
    panels = list(part.subplots(-(-count // columns), columns, squeeze=False).flat)
    for spare in panels[count:]:
        spare.set_visible(False)
    return panels[:count]


def _columns(count: int) -> int:
    """Panels beside each other, so that each is large enough on a phone."""
    return {1: 1, 2: 2, 4: 2, 8: 4}.get(count, 3 if count <= 12 else 4)


def _finish(
    part: SubFigure, panels: list[Axes], *, x: str, y: str, bar: str, extend: str = "neither"
) -> None:
    """What the axes are, and what the colours mean."""
    for axes in panels:
        subplot = axes.get_subplotspec()
        if subplot is not None and subplot.is_first_col():
            axes.set_ylabel(y, fontsize=10)
    if len(panels) == 1:
        panels[0].set_xlabel(x, fontsize=10.5)
    else:
        part.supxlabel(x, fontsize=10.5, color=INK)
    colors = part.colorbar(panels[0].images[0], ax=panels, fraction=0.05, pad=0.02, extend=extend)
    colors.set_label(bar, fontsize=10)
    colors.ax.tick_params(labelsize=9)


def _limit(arrays: Sequence[ndarray]) -> tuple[float, str]:
    """The number of the strongest colour, and at which ends of the scale there are others.

    The largest number, or one that only a few are far beyond.
    """
    sizes = np.concatenate([np.abs(array[np.isfinite(array)]) for array in arrays])
    largest, shown = float(sizes.max()), float(np.quantile(sizes, _SHARE_SHOWN))
    return (shown, "both") if 0 < 1.5 * shown < largest else (largest or 1.0, "neither")


def _tidy(axes: Axes, title: str) -> None:
    axes.grid(visible=False)
    axes.set_title(title, fontsize=9.5)
    axes.tick_params(labelsize=9)
    subplot = axes.get_subplotspec()
    narrow = subplot is not None and subplot.get_gridspec().ncols > 2
    integer_axis(axes.xaxis, 3 if narrow else 4)
    integer_axis(axes.yaxis)


def _norm_lines(axes: Axes, vectors: Sequence[Rows]) -> None:
    for rows, color in zip(vectors, ramp(len(vectors)), strict=True):
        at = np.arange(rows.first, rows.last + 1)
        norms = np.linalg.norm(rows.values, axis=-1)
        axes.plot(at, norms, color=color, linewidth=1.2, label=rows.name or None)
    _legend(axes, len([rows for rows in vectors if rows.name]))


def _legend(axes: Axes, count: int) -> None:
    if 1 < count <= 8:
        axes.legend(
            ncols=4, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 0.98), handlelength=1.2
        )


def _cosine_image(axes: Axes, rows: Rows) -> AxesImage:
    unit = rows.values / np.linalg.norm(rows.values, axis=-1, keepdims=True).clip(1e-12)
    first, last = rows.first, rows.last
    axes.grid(visible=False)
    integer_axis(axes.xaxis, 3)
    integer_axis(axes.yaxis, 3)
    return axes.imshow(
        (unit @ unit.T).clip(-1, 1),
        vmin=-1,
        vmax=1,
        cmap=DIVERGING,
        extent=(first - 0.5, last + 0.5, last + 0.5, first - 0.5),
        interpolation="none",
    )


def _axis(rows: Sequence[Rows]) -> str:
    """What stands below: the sign in words, for the sides that there are."""
    if not rows[0].relative:
        return "position (tokens)"
    back = "← looks back     " if any(one.first < 0 for one in rows) else ""
    ahead = "     looks ahead →" if any(one.last > 0 for one in rows) else ""
    return f"{back}offset (tokens){ahead}"


def _height(count: int, panel: float, columns: int | None = None) -> float:
    columns = columns or _columns(count)
    # Fewer panels are wider, and square ones then higher.
    higher = {1: 1.7, 2: 1.35, 3: 1.0}.get(columns, 0.85)
    return 0.75 + -(-count // columns) * panel * higher


def _ahead(scores: ndarray) -> ndarray:
    """Where the key is ahead of the query."""
    return ~np.tril(np.ones(scores.shape, bool), scores.shape[1] - scores.shape[0])
