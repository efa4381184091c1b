"""The whole job: train with several position schemes, measure, listen, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..machine import machine
from ..models.decoder import DecoderLM
from ..report.blocks import Report
from ..report.comparing import REPORT, check_files, compare_and_report
from ..training.comparison import Comparison
from ..training.conditions import conditions
from ..training.devices import Devices
from ..training.trained import TrainedModel
from .composer import Composer
from .page import comparison_report
from .results import ComparisonResults
from .settings import MusicSettings
from .source import MusicSource
from .train import check_training, train_position
from .windows import long_enough, nats_per_token, nats_per_token_by_length

__all__ = ["REPORT", "check_comparison", "compare"]

_Trained = Mapping[str, Sequence[TrainedModel[DecoderLM]]]


def check_comparison(
    settings: MusicSettings,
    comparison: Comparison,
    composer: Composer,
    *,
    folder: Path,
    devices: Devices,
) -> None:
    """Raise if `compare` could not begin, or not write what it found, without reading the music.

    Args:
        settings: sizes and budget.
        comparison: what is to be trained.
        composer: of the new piece.
        folder: of the run.
        devices: where to train.

    Raises:
        TrainingError: as `check_training` for any of the models.
        ValueError: if a file cannot be written.
    """
    check_files(folder)
    composer.check(folder)
    for _, seed, where in comparison.folders(folder):
        check_training(settings.with_seed(seed), folder=where, devices=devices)


def compare(
    settings: MusicSettings,
    comparison: Comparison,
    source: MusicSource,
    composer: Composer,
    *,
    folder: Path,
    devices: Devices,
    say: Callable[[str], None] = print,
) -> ComparisonResults | None:
    """Train and measure all models, and write the run's folder.

    Models of one seed differ in their positions alone: steps, data order and the first numbers of
    all other parameters are the same.

    Args:
        settings: sizes and budget; the seeds are those of the comparison.
        comparison: what is trained.
        source: the music.
        composer: of the new piece.
        folder: of the run; a run in it with the same settings is resumed.
        devices: where to train, and to measure if that is a GPU.
        say: takes a line on what is being done.

    Returns:
        The numbers, which are in `metrics.json` too; None in the processes of other devices.

    Raises:
        TrainingError: if the folder holds a run with other settings or on other data.
    """
    words = composer.words(settings, source)
    say(f"{words.works}: {source.split}")

    def measure(trained: _Trained) -> ComparisonResults:
        say(f"measuring on the held-out {words.works}")
        return _measure(settings, comparison, source, trained, devices)

    def report(results: ComparisonResults) -> Report:
        position = _composing(results.trained, settings)
        say(f"composing {composer.length} ({position})")
        section = composer.compose(
            results.trained[position][0].model,
            settings,
            source,
            position=position,
            seed=comparison.seed,
        )
        return comparison_report(settings, source, results, words, section)

    return compare_and_report(
        comparison,
        folder=folder,
        devices=devices,
        train=lambda position, seed, where: train_position(
            position, settings.with_seed(seed), source, folder=where, devices=devices
        ),
        measure=measure,
        report=report,
        about=conditions(settings, source.about()),
        say=say,
    )


def _composing(trained: _Trained, settings: MusicSettings) -> str:
    """The position whose first model is to compose, as `composing_model` says in words."""
    if settings.train_on_valid:
        return list(trained)[-1]
    return min(trained, key=lambda position: trained[position][0].curves["valid"][-1][1])


def _measure(
    settings: MusicSettings,
    comparison: Comparison,
    source: MusicSource,
    trained: _Trained,
    devices: Devices,
) -> ComparisonResults:
    most, window = settings.held_out_tokens, settings.window
    held_out = source.held_out(most, window=window)
    return ComparisonResults(
        trained=trained,
        held_out={
            name: [nats_per_token(one.model, held_out, window=window) for one in models]
            for name, models in trained.items()
        },
        counting=source.counting(most, window=window),
        lengths={
            name: [nats_per_token_by_length(one.model, held_out, window=window) for one in models]
            for name, models in trained.items()
        },
        pieces=len(held_out),
        long_pieces=len(long_enough(held_out, window=window)),
        seeds=comparison.all_seeds,
        machine=machine(precision=devices.precision),
    )
