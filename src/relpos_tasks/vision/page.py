"""The report on a comparison, made from its numbers."""

from __future__ import annotations

import numpy as np
import torch

from ..models.pixel_classifier import PixelClassifier
from ..report.blocks import (
    Block,
    FactsBlock,
    FigureBlock,
    ListBlock,
    Report,
    Section,
    TableBlock,
    TableRow,
    TextBlock,
)
from ..report.colors import series_colors
from ..report.figures import curves_figure
from ..report.wording import busy_note, count, duration
from ..training.comparison import mean_and_spread
from .canvas import INK, TESTS, TRAINING, Canvas, canvases
from .digits import DigitSplit
from .evaluate import predict
from .figures import (
    accuracy_figure,
    attention_figure,
    labels_figure,
    offsets_figure,
    places_figure,
)
from .maps import added_by_offset, pixel_weights, similarity_of_places
from .results import TRAINED_ON, ComparisonResults
from .settings import VisionSettings
from .wording import (
    LITERATURE,
    TEST_TITLES,
    is_good,
    protocol,
    summary,
    tests_note,
    title_of,
    verdict,
)

__all__ = ["comparison_report", "held_out_blocks"]

# Among so many canvases of a test the one with the most digits is shown.
_CANDIDATES = 20
# Over how many canvases the maps by offset are means.
_AVERAGED = 8
# A place where digits stood in training, and one where they never did.
_PLACES = ((4, 4), (12, 12))


def comparison_report(
    settings: VisionSettings, split: DigitSplit, results: ComparisonResults
) -> Report:
    """The report.

    Args:
        settings: sizes and budget.
        split: the digits.
        results: the numbers.
    """
    models = {name: trained[0].model for name, trained in results.trained.items()}
    shown = {
        test: _shown(canvases(split.held_out, TESTS[test], results.canvases)) for test in TESTS
    }
    return Report(
        title="Digits on canvases: positions in two dimensions",
        summary=summary(settings, results),
        verdict=verdict(results),
        good=is_good(results),
        sections=[
            Section("held-out", "Accuracy by test", held_out_blocks(results)),
            Section("canvases", "Canvases with predictions", _canvases(models, shown)),
            Section("curves", "Learning", [_curves(results)]),
            Section("tables", "What the tables learned", _tables(models, split)),
            Section("attention", "Where a pixel looks", _attention(models, shown[TRAINED_ON])),
            Section("cost", "What it costs", cost_blocks(results)),
            Section("literature", "What is known", [ListBlock(LITERATURE)]),
            Section(
                "protocol",
                "How it was measured",
                [ListBlock(protocol(settings, split)), FactsBlock(results.machine)],
            ),
        ],
    )


def held_out_blocks(results: ComparisonResults) -> list[Block]:
    """The table and the figure of accuracy by test.

    Args:
        results: the numbers.
    """
    colors = series_colors(results.trained)
    rows = [
        TableRow(
            [
                f"{name}: {title_of(name)}",
                *(mean_and_spread(results.values(name, test)) for test in TESTS),
            ],
            bar=results.mean(name, TRAINED_ON),
            color=colors[name],
        )
        for name in results.trained
    ]
    figure = accuracy_figure(
        {
            name: {TEST_TITLES[test]: results.values(name, test) for test in TESTS}
            for name in results.trained
        }
    )
    return [
        TextBlock(tests_note(results)),
        TableBlock(["positions", *TEST_TITLES.values()], rows),
        FigureBlock(
            figure,
            "Accuracy by test",
            "The share of ink pixels labelled rightly, for each test"
            + (" (bars: means over the seeds; dots: seeds)." if len(results.seeds) > 1 else "."),
        ),
    ]


def cost_blocks(results: ComparisonResults) -> list[Block]:
    """The table of what each model holds, and how long it trained.

    Args:
        results: the numbers.
    """
    rows = []
    for name, models in results.trained.items():
        seconds = sum(one.time.seconds for one in models) / len(models)
        busy = any(one.time.crowded for one in models)
        rows.append(
            TableRow(
                [
                    f"{name}: {title_of(name)}",
                    count(models[0].parameters),
                    duration(seconds) + (" *" if busy else ""),
                ]
            )
        )
    times = {name: [one.time for one in models] for name, models in results.trained.items()}
    return [TableBlock(["positions", "parameters", "training"], rows, note=busy_note(times))]


def _canvases(models: dict[str, PixelClassifier], shown: dict[str, Canvas]) -> list[Block]:
    blocks: list[Block] = [
        TextBlock(
            "One held-out canvas of each test, by the first seed of each model. The colour of an "
            "ink pixel is the digit that it is said to belong to; nothing was chosen by the result."
        )
    ]
    for test, canvas in shown.items():
        image = torch.from_numpy(canvas.image)[None]
        given = {name: predict(model, image)[0].argmax(0).numpy() for name, model in models.items()}
        digits = ", ".join(str(digit) for digit in np.unique(canvas.labels[canvas.labels >= 0]))
        blocks.append(
            FigureBlock(
                labels_figure(canvas.image, {"as it is": canvas.labels} | given),
                f"A canvas of the test {test} with the labels of each model",
                f"{TEST_TITLES[test].capitalize()}: the digits {digits}.",
            )
        )
    return blocks


def _curves(results: ComparisonResults) -> FigureBlock:
    return FigureBlock(
        curves_figure(
            {name: models[0].curves for name, models in results.trained.items()},
            ("chance", float(np.log(10))),
            ylabel="nats per ink pixel",
        ),
        "Learning curves",
        "Thin lines: training canvases. Thick lines: canvases of the watched images at the places "
        "of training. Dash and dot: guessing.",
    )


def _tables(models: dict[str, PixelClassifier], split: DigitSplit) -> list[Block]:
    averaged = canvases(split.held_out, TRAINING, _AVERAGED)
    images = torch.from_numpy(np.stack([canvas.image for canvas in averaged]))
    blocks: list[Block] = []
    for name, model in models.items():
        added = added_by_offset(model, images, INK)
        if len(added):
            blocks.append(
                FigureBlock(
                    offsets_figure(added.numpy()),
                    f"What the positions of {name} add to scores, by offset",
                    f"{name}: what the positions add to the scores of ink pixels, by the offset of "
                    f"the key down and across (means over the ink of {_AVERAGED} held-out "
                    "canvases; red attracts, blue repels, white corners: no ink pixel has a key "
                    "there).",
                )
            )
        maps = {place: similarity_of_places(model, place) for place in _PLACES}
        if found := {place: one.numpy() for place, one in maps.items() if one is not None}:
            blocks.append(
                FigureBlock(
                    places_figure(found),
                    f"Similarity of the rows of {name}",
                    f"{name}: cosine similarity of the learned row of one place (framed) with "
                    "those of all places, as in Dosovitskiy et al. (2021, figure 7): a place where "
                    "digits stood in training, and one where none did.",
                )
            )
    return blocks or [TextBlock("None of these models has learned a table.")]


def _attention(models: dict[str, PixelClassifier], canvas: Canvas) -> list[Block]:
    pixel = _middle_pixel(canvas)
    blocks: list[Block] = []
    for name, model in models.items():
        weights = pixel_weights(model, torch.from_numpy(canvas.image), pixel)
        if len(weights):
            blocks.append(
                FigureBlock(
                    attention_figure(canvas.image, pixel, weights.numpy()),
                    f"Attention of one pixel with {name}",
                    f"{name}: how much each head reads from every pixel for the framed ink pixel "
                    "(outlined: ink). Colours grow with the square root of the weight.",
                )
            )
    return blocks or [TextBlock("None of these models has attention.")]


def _shown(found: list[Canvas]) -> Canvas:
    """The first canvas of the first ones that has the most different digits."""
    return max(found[:_CANDIDATES], key=lambda canvas: len(np.unique(canvas.labels)))


def _middle_pixel(canvas: Canvas) -> tuple[int, int]:
    """The ink pixel in the middle of the first digit."""
    labelled = canvas.labels[canvas.labels >= 0]
    pixels = np.argwhere(canvas.labels == labelled[0])
    distances = np.abs(pixels - pixels.mean(axis=0)).sum(axis=1)
    row, column = pixels[distances.argmin()]
    return int(row), int(column)
