"""The figures of a report on training, as SVG: the loss over steps, and a measure over lengths."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from relpos.plots.style import GREY, WIDTH, new_figure, svg

from .colors import series_colors, series_lines

__all__ = ["curves_figure", "lengths_figure"]

# So many times the least value a linear axis shows the others in, before they run together.
_MOST_LINEAR = 4
# Names of a legend that has room inside the axes.
_MOST_INSIDE = 6


def curves_figure(
    curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]],
    baseline: tuple[str, float] | None,
    *,
    ylabel: str,
) -> str:
    """The loss over steps; training thin, validation thick.

    Args:
        curves: for each model, such as `"relative"`, its `"train"` and `"valid"`, lists of
            `(step, loss)`.
        baseline: a name and a loss for a line of dashes and dots; None draws none.
        ylabel: the loss and its unit, such as `"nats per token"`.
    """
    colors, lines = series_colors(curves), series_lines(curves)
    with new_figure(WIDTH, 3.4 + _legend_height(curves)) as (figure, (axes,)):
        for name, parts in curves.items():
            color, line = colors[name], lines[name]
            if parts["train"]:
                axes.plot(*_columns(parts["train"]), color=color, alpha=0.45, linewidth=1)
            if parts["valid"]:
                steps, losses = _columns(parts["valid"])
                axes.plot(steps, losses, line, color=color, linewidth=2, marker="o", markersize=3.5)
            axes.plot([], [], line, color=color, linewidth=2, label=f"{name} (thin: training)")
        if baseline is not None:
            axes.axhline(baseline[1], color=GREY, linewidth=1, linestyle="-.")
            axes.plot([], [], color=GREY, linewidth=1, linestyle="-.", label=baseline[0])
        axes.set(xlabel="step", ylabel=ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(figure, axes, curves)
        return svg(figure)


def lengths_figure(measured: Mapping[str, Mapping[int, float]], *, xlabel: str, ylabel: str) -> str:
    """A measure over lengths, which double from one to the next.

    Where some values are many times the others, the measure has a logarithmic axis too.

    Args:
        measured: for each model, what was measured by length.
        xlabel: the length and its unit.
        ylabel: the measure and its unit.
    """
    colors, lines = series_colors(measured), series_lines(measured)
    with new_figure(WIDTH, 3.0 + _legend_height(measured)) as (figure, (axes,)):
        for name, by_length in measured.items():
            lengths = sorted(by_length)
            axes.plot(
                lengths,
                [by_length[length] for length in lengths],
                lines[name],
                color=colors[name],
                linewidth=2,
                marker="o",
                label=name,
            )
        lengths = sorted({length for by_length in measured.values() for length in by_length})
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        values = [value for by_length in measured.values() for value in by_length.values()]
        if values and 0 < _MOST_LINEAR * min(values) < max(values):
            _make_logarithmic(axes)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        _legend(figure, axes, measured)
        return svg(figure)


def _make_logarithmic(axes: Axes) -> None:
    """A logarithmic measure, with its values as they are at 1, 2 and 5 of each power of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.minorticks_off()


def _legend_height(names: Collection[str]) -> float:
    """Inches that a legend below the axes takes."""
    return 0.0 if len(names) <= _MOST_INSIDE else 0.22 * (len(names) + 2) / 2


def _legend(figure: Figure, axes: Axes, names: Collection[str]) -> None:
    """Inside the axes, or below them where it would cover the lines."""
    if len(names) <= _MOST_INSIDE:
        axes.legend()
    else:
        figure.legend(loc="outside lower left", ncols=2, fontsize=9)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]
