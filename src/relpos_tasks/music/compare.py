"""The whole job: train with several position schemes, measure, listen, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from ..files import check_writable, write_json
from ..models.decoder import DecoderLM
from ..models.positions import POSITIONS
from ..report.page import write_report
from ..training.comparison import Comparison
from ..training.devices import Devices
from ..training.trained import TrainedModel
from .baselines import counting_baselines
from .evaluate import held_out_nats, lengths_test, long_enough
from .export import check_chorale, write_chorale
from .generate import compose
from .page import comparison_report
from .results import ComparisonResults
from .settings import MusicSettings
from .source import Source
from .train import check_training, train_position

__all__ = ["COMPARED", "REPORT", "check_comparison", "compare"]

# What is compared where nothing else is asked for.
COMPARED = ("absolute", "huang", "shaw")
REPORT = "report.html"
METRICS = "metrics.json"
MACHINE = "machine.json"
CHORALE = "chorale"


def check_comparison(
    settings: MusicSettings, comparison: Comparison, *, folder: Path, devices: Devices
) -> None:
    """Raise if `compare` could not begin, or not write what it found, without reading a piece.

    Args:
        settings: sizes and budget.
        comparison: what is to be trained.
        folder: of the run.
        devices: where to train.

    Raises:
        TrainingError: as `check_training` for any of the models.
        ValueError: if a file cannot be written.
    """
    for name in (REPORT, METRICS, MACHINE):
        check_writable(folder / name)
    check_chorale(folder / CHORALE)
    for _, seed, where in comparison.folders(folder):
        check_training(settings.with_seed(seed), folder=where, devices=devices)


def compare(
    settings: MusicSettings,
    comparison: Comparison,
    source: Source,
    *,
    folder: Path,
    bars: int = 8,
    devices: Devices,
    say: Callable[[str], None] = print,
) -> ComparisonResults | None:
    """Train and measure all models, and write the run's folder.

    Models of one seed differ in their positions alone: steps, data order and the first numbers of
    all other parameters are the same.

    Args:
        settings: sizes and budget; the seeds are those of the comparison.
        comparison: what is trained.
        source: the pieces.
        folder: of the run; a run in it with the same settings is resumed.
        bars: of the chorale that is generated.
        devices: where to train.
        say: takes a line on what is being done.

    Returns:
        The numbers, which are in `metrics.json` too; None in the processes of other devices.

    Raises:
        TrainingError: if the folder holds a run with other settings.
    """
    begun = time.perf_counter()
    say(f"pieces: {source.split}")
    trained = comparison.train(
        folder,
        lambda position, seed, where: train_position(
            position, settings.with_seed(seed), source, folder=where, devices=devices
        ),
    )
    if rank_zero_only.rank:
        return None
    after_training = time.perf_counter()
    say("measuring on the held-out pieces")
    results = _measure(settings, comparison, source, trained)
    composer = _surest(trained)
    say(f"composing {bars} bars ({composer})")
    chorale = compose(
        trained[composer][0].model,
        source.vocabulary,
        source.ranges,
        bars=bars,
        seed=comparison.seed,
        name=f"A chorale by a model with {POSITIONS[composer].title} positions",
    )
    files = write_chorale(folder / CHORALE, chorale)
    seconds = sum(one.time.seconds for models in trained.values() for one in models)
    seconds = max(seconds + time.perf_counter() - after_training, time.perf_counter() - begun)
    results = replace(results, seconds=seconds)
    write_json(folder / METRICS, results.metrics())
    write_json(folder / MACHINE, results.machine)
    report = comparison_report(settings, source, results, composer, chorale, *files)
    write_report(folder / REPORT, report)
    return results


def _surest(trained: Mapping[str, Sequence[TrainedModel[DecoderLM]]]) -> str:
    """The position whose first model has the fewest nats on the validation pieces."""
    return min(trained, key=lambda position: trained[position][0].curves["valid"][-1][1])


def _measure(
    settings: MusicSettings,
    comparison: Comparison,
    source: Source,
    trained: Mapping[str, Sequence[TrainedModel[DecoderLM]]],
) -> ComparisonResults:
    held_out, vocabulary, window = source.split.held_out, source.vocabulary, settings.window
    return ComparisonResults(
        trained=trained,
        held_out={
            name: [held_out_nats(one.model, held_out, vocabulary, window=window) for one in models]
            for name, models in trained.items()
        },
        counting=counting_baselines(source.split.train, held_out, vocabulary=vocabulary),
        lengths={
            name: [lengths_test(one.model, held_out, vocabulary, window=window) for one in models]
            for name, models in trained.items()
        },
        long_pieces=len(long_enough(held_out, window=window)),
        seeds=comparison.all_seeds,
    )
