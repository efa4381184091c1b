"""The whole job: train with several position schemes, translate or harmonise, measure, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..machine import machine
from ..models.encoder_decoder import EncoderDecoder
from ..report.comparing import REPORT, check_files, compare_and_report
from ..training.comparison import Comparison
from ..training.conditions import conditions
from ..training.devices import Devices
from ..training.sequence_to_sequence import mean_nats
from ..training.trained import TrainedModel
from .results import ComparisonResults
from .settings import TranslationSettings
from .showcase import Showcase
from .source import TranslationSource
from .train import check_training, train_position

__all__ = ["REPORT", "check_comparison", "compare"]

_Trained = Mapping[str, Sequence[TrainedModel[EncoderDecoder]]]


def check_comparison(
    settings: TranslationSettings,
    comparison: Comparison,
    showcase: Showcase,
    *,
    folder: Path,
    devices: Devices,
) -> None:
    """Raise if `compare` could not begin, or not write what it found, without reading a pair.

    Args:
        settings: sizes and budget.
        comparison: what is to be trained.
        showcase: of what the models make.
        folder: of the run.
        devices: where to train.

    Raises:
        TrainingError: as `check_training` for any of the models.
        ValueError: if there is no such position, or a file cannot be written.
    """
    check_files(folder)
    showcase.check(folder)
    for position, seed, where in comparison.folders(folder):
        check_training(position, settings.with_seed(seed), folder=where, devices=devices)


def compare(
    settings: TranslationSettings,
    comparison: Comparison,
    source: TranslationSource,
    showcase: Showcase,
    *,
    folder: Path,
    devices: Devices,
    say: Callable[[str], None] = print,
) -> ComparisonResults | None:
    """Train and measure all models, and write the run's folder.

    Models of one seed differ in their positions alone: steps, batches and the first numbers of all
    other parameters are the same.

    Args:
        settings: sizes and budget; the seeds are those of the comparison.
        comparison: what is trained; its first position is the one that others are compared to.
        source: the pairs.
        showcase: of what the models make.
        folder: of the run; a run in it with the same settings is resumed.
        devices: where to train, and to measure if that is a GPU.
        say: takes a line on what is being done.

    Returns:
        The numbers, which are in `metrics.json` too; None in the processes of other devices.

    Raises:
        TrainingError: if the folder holds a run with other settings or on other data.
    """
    say(f"{source.name}: {source.split}")

    def measure(trained: _Trained) -> ComparisonResults:
        say("measuring on the held-out pairs")
        models = {name: [one.model for one in of_seeds] for name, of_seeds in trained.items()}
        return ComparisonResults(
            trained=trained,
            held_out={
                name: [
                    mean_nats(model, source.held_out(settings), padding=source.padding)
                    for model in of_seeds
                ]
                for name, of_seeds in models.items()
            },
            translations=showcase.translations(models, settings, source),
            seeds=comparison.all_seeds,
            machine=machine(precision=devices.precision),
        )

    return compare_and_report(
        comparison,
        folder=folder,
        devices=devices,
        train=lambda position, seed, where: train_position(
            position, settings.with_seed(seed), source, folder=where, devices=devices
        ),
        measure=measure,
        report=lambda results: showcase.report(settings, source, results),
        about=conditions(settings, source.about()),
        say=say,
    )
