"""The figures of the report on vision, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Float32, Int64
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.patches import Patch
from numpy import ndarray

from relpos.plots.style import DIVERGING, WIDTH, new_figure, svg

from ..report.colors import series_colors, series_lines
from .canvas import INK

__all__ = [
    "DIGIT_COLORS",
    "accuracy_figure",
    "attention_figure",
    "draw_labels",
    "labels_figure",
    "offsets_figure",
    "places_figure",
]

# Ten that are told apart, as matplotlib has them.
DIGIT_COLORS = mpl.color_sequences["tab10"]
_COLUMNS = 4


def accuracy_figure(measured: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Accuracy by test: a bar for the mean over the seeds and, of several, a dot for each.

    Args:
        measured: accuracies by name and test, one for each seed.
    """
    colors, lines = series_colors(measured), series_lines(measured)
    tests = list(next(iter(measured.values())))
    with new_figure(WIDTH, 2.2 + 0.22 * len(measured)) as (figure, (axes,)):
        for n, (name, by_test) in enumerate(measured.items()):
            at = np.arange(len(tests)) + 0.7 * ((n + 0.5) / len(measured) - 0.5)
            means = [float(np.mean(by_test[test])) for test in tests]
            # Of more names than colours the next ones are hatched.
            hatch = {"-": None, "--": "///", ":": "..."}[lines[name]]
            bar = {"color": colors[name], "alpha": 0.75, "hatch": hatch, "edgecolor": "white"}
            axes.bar(at, means, 0.6 / len(measured), linewidth=0, label=name, **bar)
            for x, test in zip(at, tests, strict=True):
                if len(values := by_test[test]) > 1:
                    axes.plot([x] * len(values), values, "o", color="#1d2530", markersize=2.5)
        axes.axhline(0.1, color="#667", linewidth=1, linestyle="--", label="chance")
        axes.set_xticks(range(len(tests)), tests)
        axes.set(ylim=(0, 1), ylabel="accuracy")
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside lower left", ncols=2, fontsize=9)
        return svg(figure)


def labels_figure(
    image: Float32[ndarray, "m n"], labels: Mapping[str, Int64[ndarray, "m n"]]
) -> str:
    """A canvas, once for each set of labels, each ink pixel in the colour of its digit.

    Args:
        image: ink from 0 to 1.
        labels: digits by the name of who gave them.
    """
    columns = min(_COLUMNS, len(labels))
    lines = -(-len(labels) // columns)
    height = WIDTH / columns * image.shape[0] / image.shape[1] + 0.35
    with new_figure(WIDTH, lines * height + 0.3, lines, columns) as (figure, panels):
        for axes, (name, given) in zip(panels, labels.items(), strict=False):
            draw_labels(axes, image, given)
            axes.set_title(name, fontsize=9)
        for spare in panels[len(labels) :]:
            spare.set_visible(False)
        digits = [Patch(color=color, label=str(n)) for n, color in enumerate(DIGIT_COLORS)]
        figure.legend(
            handles=digits,
            loc="outside lower center",
            ncols=10,
            fontsize=8,
            handlelength=0.8,
            columnspacing=1.0,
            borderpad=0.0,
        )
        return svg(figure)


def draw_labels(axes: Axes, image: Float32[ndarray, "m n"], labels: Int64[ndarray, "m n"]) -> None:
    """Draw an image with its ink pixels coloured by digit, and each digit's number beside them.

    Args:
        axes: to draw on.
        image: ink from 0 to 1.
        labels: a digit for each ink pixel; what it is elsewhere does not matter.
    """
    shown = np.repeat(1 - 0.35 * image[..., None], 3, axis=2)
    ink = image >= INK
    strength = (0.35 + 0.65 * image)[..., None]
    colors = np.array([to_rgb(color) for color in DIGIT_COLORS])
    shown[ink] = (1 - strength + strength * colors[labels.clip(0, 9)])[ink]
    axes.imshow(shown, interpolation="none")
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#ccd")


def offsets_figure(added: Float[ndarray, "layer h r s"]) -> str:
    """What positions add to scores by the offset down and across, one map per layer and head.

    Args:
        added: what `added_by_offset` returned.
    """
    down, across = (size // 2 for size in added.shape[2:])
    limit = float(np.nanquantile(np.abs(added), 0.995)) or 1.0
    layers, heads = added.shape[:2]
    with new_figure(WIDTH, _height(layers, heads, down / across), layers, heads) as (
        figure,
        panels,
    ):
        for axes, (layer, head) in zip(panels, np.ndindex(layers, heads), strict=True):
            shown = axes.imshow(
                added[layer, head],
                cmap=DIVERGING,
                vmin=-limit,
                vmax=limit,
                extent=(-across - 0.5, across + 0.5, down + 0.5, -down - 0.5),
                interpolation="none",
            )
            _name(axes, layer, head, heads)
        figure.colorbar(shown, ax=panels, shrink=0.7, label="logits", extend="both")
        figure.supxlabel("offset across (pixels)", fontsize=10)
        figure.supylabel("offset down (pixels)", fontsize=10)
        return svg(figure)


def places_figure(similarity: Mapping[tuple[int, int], Float[ndarray, "m n"]]) -> str:
    """Cosine similarity of some places' rows with those of all places.

    Args:
        similarity: maps by place.
    """
    with new_figure(WIDTH, WIDTH / len(similarity) + 0.3, 1, len(similarity)) as (figure, panels):
        for axes, ((row, column), cosines) in zip(panels, similarity.items(), strict=True):
            shown = axes.imshow(cosines, cmap=DIVERGING, vmin=-1, vmax=1, interpolation="none")
            axes.plot(column, row, "s", color="#1d2530", markersize=5, fillstyle="none")
            axes.set_title(f"row {row}, column {column}", fontsize=9)
            axes.grid(visible=False)
            axes.tick_params(labelsize=8)
        figure.colorbar(shown, ax=panels, shrink=0.7, label="cosine similarity")
        return svg(figure)


def attention_figure(
    image: Float32[ndarray, "m n"],
    pixel: tuple[int, int],
    weights: Float[ndarray, "layer h m n"],
) -> str:
    """Where one pixel looks, one map per layer and head.

    Args:
        image: ink from 0 to 1.
        pixel: row and column.
        weights: what `pixel_weights` returned.
    """
    layers, heads = weights.shape[:2]
    height = _height(layers, heads, image.shape[0] / image.shape[1])
    # Small weights are most of them: the root lets them be seen.
    norm = PowerNorm(0.5, vmin=0, vmax=max(float(weights.max()), 1e-12))
    with new_figure(WIDTH, height, layers, heads) as (figure, panels):
        for axes, (layer, head) in zip(panels, np.ndindex(layers, heads), strict=True):
            shown = axes.imshow(
                weights[layer, head], cmap="magma_r", norm=norm, interpolation="none"
            )
            axes.contour(image, levels=[INK], colors="#0b6e6e", linewidths=0.6)
            axes.plot(pixel[1], pixel[0], "s", color="#0b6e6e", markersize=5, fillstyle="none")
            _name(axes, layer, head, heads)
        figure.colorbar(shown, ax=panels, shrink=0.7, label="weight")
        return svg(figure)


def _height(lines: int, columns: int, sides: float) -> float:
    """Of a figure of maps beside a colour bar, in inches; `sides`: a map's height by its width."""
    return 0.4 + lines * (0.3 + 0.8 * WIDTH / columns * sides)


def _name(axes: Axes, layer: int, head: int, heads: int) -> None:
    of_head = f", head {head + 1}" if heads > 1 else ""
    axes.set_title(f"layer {layer + 1}{of_head}", fontsize=9)
    axes.grid(visible=False)
    axes.tick_params(labelsize=8)
