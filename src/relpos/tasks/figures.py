"""The figures of a report, as SVG: curves, lengths, and what the rows of a table learned."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy import ndarray
from torch import nn

from ..positions.absolute import LearnedAbsolute
from ..positions.tables import LearnedTables

__all__ = ["cosine_figure", "curves_figure", "lengths_figure", "norms_figure", "table_rows"]

_COLORS = {"relative": "#0b6e6e", "absolute": "#c2571a"}
_GREY = "#667"
# Inches: narrow enough to be read on a phone.
_WIDTH = 6.2
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#99a",
    "axes.labelcolor": "#334",
    "axes.titlesize": 11,
    "axes.titlecolor": "#334",
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "axes.grid": True,
    "grid.color": "#e6e8ec",
    "legend.frameon": False,
    # The same figure from the same numbers, to the byte.
    "svg.hashsalt": "relpos",
}


def table_rows(model: nn.Module) -> tuple[Float[ndarray, "layer r d"], int, bool]:
    """The learned rows of a model's positions.

    Args:
        model: a decoder with Huang, Shaw or learned absolute positions.

    Returns:
        The rows (of several heads, one after the other as layers), the offset or position of the
        first row, and whether the rows are relative. No layer if nothing was learned.
    """
    tables = [module for module in model.modules() if isinstance(module, LearnedTables)]
    keys = [table.keys.detach().cpu().numpy() for table in tables if table.keys is not None]
    if keys:
        return np.concatenate(keys), tables[0].first, True
    absolute = [module for module in model.modules() if isinstance(module, LearnedAbsolute)]
    if absolute:
        return np.stack([table.rows.detach().cpu().numpy() for table in absolute]), 0, False
    return np.zeros((0, 1, 1)), 0, False


def curves_figure(
    curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]],
    baseline: tuple[str, float] | None,
) -> str:
    """Nats per token over steps; training thin, validation thick.

    Args:
        curves: for each model, such as `"relative"`, its `"train"` and `"valid"`, lists of
            `(step, nats)`.
        baseline: a name and nats per token for a dashed line; None draws none.
    """
    with _figure(_WIDTH, 3.4) as (figure, (axes,)):
        for name, parts in curves.items():
            color = _COLORS.get(name, _GREY)
            if parts["train"]:
                axes.plot(*_columns(parts["train"]), color=color, alpha=0.45, linewidth=1)
            if parts["valid"]:
                steps, nats = _columns(parts["valid"])
                axes.plot(steps, nats, color=color, linewidth=2, marker="o", markersize=3.5)
            axes.plot([], [], color=color, linewidth=2, label=f"{name} (thin: training)")
        if baseline is not None:
            axes.axhline(baseline[1], color=_GREY, linewidth=1, linestyle="--")
            axes.plot([], [], color=_GREY, linewidth=1, linestyle="--", label=baseline[0])
        axes.set(xlabel="step", ylabel="nats per token")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
        return _svg(figure)


def lengths_figure(lengths: Mapping[str, Mapping[int, float]]) -> str:
    """Nats per token over the length of the window; the first length is that of training.

    Args:
        lengths: nats per token by window (tokens) for each model.
    """
    with _figure(_WIDTH, 3.0) as (figure, (axes,)):
        for name, nats in lengths.items():
            windows = sorted(nats)
            axes.plot(
                windows,
                [nats[window] for window in windows],
                color=_COLORS.get(name, _GREY),
                linewidth=2,
                marker="o",
                label=name,
            )
        windows = sorted({window for nats in lengths.values() for window in nats})
        axes.set_xscale("log", base=2)
        axes.set_xticks(windows, [f"{window:,}" for window in windows])
        axes.minorticks_off()
        axes.set(xlabel="tokens in a window (trained at the first)", ylabel="nats per token")
        axes.legend()
        return _svg(figure)


def norms_figure(rows: Float[ndarray, "layer r d"], first: int, *, relative: bool) -> str:
    """The length of each row over its offset or position, one line per layer.

    Args:
        rows: what `table_rows` found.
        first: the offset or position of the first row.
        relative: whether the rows belong to offsets.
    """
    with _figure(_WIDTH, 3.0) as (figure, (axes,)):
        at = np.arange(first, first + rows.shape[1])
        for layer, color in zip(range(len(rows)), _ramp(len(rows)), strict=True):
            label = f"layer {layer + 1}" if len(rows) > 1 else None
            norms = np.linalg.norm(rows[layer], axis=-1)
            axes.plot(at, norms, color=color, linewidth=1.2, label=label)
        axes.set(xlabel=_axis(relative), ylabel="length of the row")
        if 1 < len(rows) <= 8:
            axes.legend(ncols=2)
        return _svg(figure)


def cosine_figure(rows: Float[ndarray, "layer r d"], first: int, *, relative: bool) -> str:
    """Cosine similarity between any two rows, one panel per layer (Wang and Chen 2020, figure 1).

    Args:
        rows: what `table_rows` found.
        first: the offset or position of the first row.
        relative: whether the rows belong to offsets.
    """
    columns = min(len(rows), 2)
    lines = -(-len(rows) // columns)
    size = (3.6, 3.0) if len(rows) == 1 else (_WIDTH, 0.8 + 2.3 * lines)
    with _figure(*size, lines, columns) as (figure, panels):
        last = first + rows.shape[1] - 1
        image = None
        for layer, axes in enumerate(panels):
            if layer >= len(rows):
                axes.set_visible(False)
                continue
            unit = rows[layer] / np.linalg.norm(rows[layer], axis=-1, keepdims=True).clip(1e-12)
            image = axes.imshow(
                unit @ unit.T,
                vmin=-1,
                vmax=1,
                cmap="RdBu_r",
                extent=(first - 0.5, last + 0.5, last + 0.5, first - 0.5),
                interpolation="nearest",
            )
            axes.grid(visible=False)
            axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
            if len(rows) > 1:
                axes.set_title(f"layer {layer + 1}")
        figure.supxlabel(_axis(relative), fontsize=11, color="#334")
        if image is not None:
            shown = [axes for axes in panels if axes.get_visible()]
            figure.colorbar(image, ax=shown, shrink=0.8, label="cosine similarity")
        return _svg(figure)


@contextmanager
def _figure(
    width: float, height: float, lines: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure without pyplot, so that nothing global is touched and no screen is needed."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, list(figure.subplots(lines, columns, squeeze=False).flat)


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, dpi=150, metadata={"Date": None})
    return file.getvalue()


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]


def _ramp(count: int) -> list[str]:
    """From light (the first layer) to dark (the last)."""
    shades = mpl.colormaps["viridis"](np.linspace(0.75, 0.05, count))
    return [to_hex(shade) for shade in shades]


def _axis(relative: bool) -> str:
    return "offset (tokens; 0 is the token itself)" if relative else "position (tokens)"
