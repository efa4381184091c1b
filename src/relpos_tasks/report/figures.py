"""The figures of a report on training, as SVG: nats over steps, and over lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from relpos.plots.style import GREY, WIDTH, new_figure, svg

__all__ = ["curves_figure", "lengths_figure"]

_COLORS = {"relative": "#0b6e6e", "absolute": "#c2571a"}


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
    with new_figure(WIDTH, 3.4) as (figure, (axes,)):
        for name, parts in curves.items():
            color = _COLORS.get(name, GREY)
            if parts["train"]:
                axes.plot(*_columns(parts["train"]), color=color, alpha=0.45, linewidth=1)
            if parts["valid"]:
                steps, nats = _columns(parts["valid"])
                axes.plot(steps, nats, color=color, linewidth=2, marker="o", markersize=3.5)
            axes.plot([], [], color=color, linewidth=2, label=f"{name} (thin: training)")
        if baseline is not None:
            axes.axhline(baseline[1], color=GREY, linewidth=1, linestyle="--")
            axes.plot([], [], color=GREY, linewidth=1, linestyle="--", label=baseline[0])
        axes.set(xlabel="step", ylabel="nats per token")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
        return svg(figure)


def lengths_figure(lengths: Mapping[str, Mapping[int, float]]) -> str:
    """Nats per token over the length of the window; the first length is that of training.

    Args:
        lengths: nats per token by window (tokens) for each model.
    """
    with new_figure(WIDTH, 3.0) as (figure, (axes,)):
        for name, nats in lengths.items():
            windows = sorted(nats)
            axes.plot(
                windows,
                [nats[window] for window in windows],
                color=_COLORS.get(name, GREY),
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
        return svg(figure)


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]
