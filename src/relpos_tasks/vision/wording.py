"""The sentences of the report on vision, made from its numbers."""

from __future__ import annotations

from ..models.map_positions import MAP_POSITIONS
from ..models.pixel_classifier import CONVOLUTION
from ..report.wording import seeds_note, training_notes
from .canvas import INK, TESTS, TRAINING
from .digits import DigitSplit
from .results import TRAINED_ON, ComparisonResults
from .settings import VisionSettings

__all__ = [
    "LITERATURE",
    "TEST_TITLES",
    "is_good",
    "protocol",
    "summary",
    "tests_note",
    "title_of",
    "verdict",
]

TEST_TITLES = {
    "same": "places of training",
    "shifted": "shifted",
    "32x32": "32 x 32",
    "12x40": "12 x 40",
}

LITERATURE = [
    "From memory, on other data and other measures, to say what is known and not to compare with: "
    "Bottleneck Transformers (Srinivas et al. 2021) report for object detection on COCO with a "
    "ResNet-50 that attention with relative positions gains about 1.5 box AP over attention by "
    "content alone, and with absolute positions about 0.4.",
    "Stand-alone self-attention (Ramachandran et al. 2019) reports on ImageNet 77.2 % without "
    "positions, 78.2 % with absolute and 80.2 % with relative ones.",
    "Zero padding tells convolutions where the edge is (Islam et al. 2020). Here all canvases have "
    "a blank margin and are blank beyond their edge, so that the stem sees no edge; the deeper "
    "convolutions of the convolutional blocks do.",
]


def title_of(position: str) -> str:
    """What a position is, for tables and figures.

    Args:
        position: a position of `PixelClassifierConfig`.

    >>> title_of("none")
    'no positions'
    """
    if position == CONVOLUTION:
        return "3 x 3 convolution in place of attention"
    return MAP_POSITIONS[position].title


def summary(settings: VisionSettings, results: ComparisonResults) -> str:
    """What was done, in a few sentences.

    Args:
        settings: sizes and budget.
        results: the numbers.
    """
    training, (height, width) = settings.training, TRAINING.shape
    blocks = (
        "pre-norm transformer blocks"
        if settings.block == "attention"
        else "bottleneck blocks of Bottleneck Transformers"
    )
    seeds = "" if len(results.seeds) == 1 else f", each with {len(results.seeds)} seeds"
    return (
        f"{len(results.trained)} models of {settings.layers} {blocks} and width {settings.width} "
        "learned to name the handwritten digit that each ink pixel of a canvas belongs to; they "
        f"differ in their positions alone. All had {training.steps:,} steps of {training.batch} "
        f"canvases of {height} x {width} pixels with one to three digits in the upper left{seeds}. "
        "They were then measured on digits that none had seen, at the same places, elsewhere, and "
        "on canvases of other sizes. Canvases are composed: digits of scikit-learn's collection on "
        "blank paper, no photographs."
    )


def verdict(results: ComparisonResults) -> list[str]:
    """What the held-out numbers say, in sentences.

    Args:
        results: the numbers.
    """
    names = list(results.held_out)
    sentences = []
    for test in TESTS:
        best = max(names, key=lambda name: results.mean(name, test))
        where = {
            TRAINED_ON: "At the places of training",
            "shifted": "On the same canvases with their digits shifted",
            "32x32": "On canvases of 32 x 32",
            "12x40": "On canvases of 12 x 40",
        }[test]
        others = ", ".join(
            f"{name} {results.mean(name, test):.3f}" for name in names if name != best
        )
        sentences.append(
            f"{where} {best} has the highest accuracy, {results.mean(best, test):.3f}"
            + (f" ({others})." if len(names) <= 4 and others else ".")
        )
    return sentences


def is_good(results: ComparisonResults) -> bool:
    """Whether positions that move with the digits, as relative ones do, are best where these move.

    Args:
        results: the numbers.
    """
    best = max(results.held_out, key=lambda name: results.mean(name, "shifted"))
    return best not in ("none", CONVOLUTION) and not MAP_POSITIONS[best].at_input


def tests_note(results: ComparisonResults) -> str:
    """On what accuracy was measured.

    Args:
        results: the numbers.
    """
    return (
        "The share of ink pixels whose likeliest digit is theirs; guessing gives 0.1. Each test "
        f"has {results.canvases} canvases of images that no model was trained on. Those of the "
        "second are those of the first with all digits moved 5 rows down and 2 columns to the "
        f"right; on larger canvases digits stand anywhere. {seeds_note(len(results.seeds))}"
    )


def protocol(settings: VisionSettings, split: DigitSplit) -> list[str]:
    """How it was measured, as sentences.

    Args:
        settings: sizes and budget.
        split: the digits.
    """
    (top, left), (rows, columns) = TRAINING.corner, TRAINING.region
    return [
        f"Images: {split}, in the order of the collection; they were split before any canvas was "
        "made, and settings were chosen on the watched ones alone.",
        "A canvas has one to three digits, as many of them as fit, of which no two share a pixel. "
        f"While training they stand in rows {top} to {top + rows - 1} and columns {left} to "
        f"{left + columns - 1}, counted from 0. A margin of one pixel is always blank.",
        f"Labelled are pixels with at least {INK:.0%} of the darkest ink; the loss and all "
        "accuracies are over these.",
        f"Curves show the {settings.watched} canvases of watched images at the places of training.",
        *training_notes(settings.training),
        "Models of one seed saw the same canvases in the same order, and all their numbers but "
        "those of the positions began the same.",
    ]
