"""The whole job: train with several position schemes, measure, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..machine import machine
from ..models.pixel_classifier import PixelClassifier
from ..report.comparing import REPORT, check_files, compare_and_report
from ..training.comparison import Comparison
from ..training.conditions import conditions
from ..training.devices import Devices
from ..training.trained import TrainedModel
from .digits import DigitSplit
from .evaluate import accuracy_by_test
from .page import comparison_report
from .results import ComparisonResults
from .settings import VisionSettings
from .train import check_training, train_position

__all__ = ["REPORT", "check_comparison", "compare"]

_Trained = Mapping[str, Sequence[TrainedModel[PixelClassifier]]]


def check_comparison(
    settings: VisionSettings, comparison: Comparison, *, folder: Path, devices: Devices
) -> None:
    """Raise if `compare` could not begin, or not write what it found, without reading an image.

    Args:
        settings: sizes and budget.
        comparison: what is to be trained.
        folder: of the run.
        devices: where to train.

    Raises:
        TrainingError: as `check_training` for any of the models.
        ValueError: if the blocks know no such position, or a file cannot be written.
    """
    check_files(folder)
    for position, seed, where in comparison.folders(folder):
        check_training(position, settings.with_seed(seed), folder=where, devices=devices)


def compare(
    settings: VisionSettings,
    comparison: Comparison,
    split: DigitSplit,
    *,
    folder: Path,
    devices: Devices,
    say: Callable[[str], None] = print,
) -> ComparisonResults | None:
    """Train and measure all models, and write the run's folder.

    Models of one seed differ in their positions alone: steps, canvases and the first numbers of all
    other parameters are the same.

    Args:
        settings: sizes and budget; the seeds are those of the comparison.
        comparison: what is trained.
        split: the digits.
        folder: of the run; a run in it with the same settings is resumed.
        devices: where to train, and to measure if that is a GPU.
        say: takes a line on what is being done.

    Returns:
        The numbers, which are in `metrics.json` too; None in the processes of other devices.

    Raises:
        TrainingError: if the folder holds a run with other settings or on other data.
    """
    say(f"digits: {split}")

    def measure(trained: _Trained) -> ComparisonResults:
        say("measuring on canvases of the held-out digits")
        return _measure(settings, comparison, split, trained, devices)

    return compare_and_report(
        comparison,
        folder=folder,
        devices=devices,
        train=lambda position, seed, where: train_position(
            position, settings.with_seed(seed), split, folder=where, devices=devices
        ),
        measure=measure,
        report=lambda results: comparison_report(settings, split, results),
        about=conditions(settings, split.about()),
        say=say,
    )


def _measure(
    settings: VisionSettings,
    comparison: Comparison,
    split: DigitSplit,
    trained: _Trained,
    devices: Devices,
) -> ComparisonResults:
    return ComparisonResults(
        trained=trained,
        held_out={
            name: [
                accuracy_by_test(one.model, split.held_out, count=settings.canvases)
                for one in models
            ]
            for name, models in trained.items()
        },
        canvases=settings.canvases,
        seeds=comparison.all_seeds,
        machine=machine(precision=devices.precision),
    )
