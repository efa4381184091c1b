"""The whole job: train with relative and with absolute positions, measure, listen, report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from ..files import check_writable, write_json
from ..report.page import write_report
from ..training.devices import Devices
from .baselines import counting_baselines
from .evaluate import held_out_nats, lengths_test, long_enough
from .export import check_chorale, write_chorale
from .generate import compose
from .page import comparison_report
from .results import ComparisonResults, TrainedModel
from .settings import MusicSettings
from .source import Source
from .train import check_training, train_position

__all__ = ["REPORT", "check_comparison", "compare"]

COMPARED = ("huang", "absolute")
REPORT = "report.html"
METRICS = "metrics.json"
MACHINE = "machine.json"
CHORALE = "chorale"


def check_comparison(settings: MusicSettings, *, folder: Path, devices: Devices) -> None:
    """Raise if `compare` could not begin, or not write what it found, without reading a piece.

    Args:
        settings: sizes and budget.
        folder: of the run.
        devices: where to train.

    Raises:
        TrainingError: as `check_training` for either model.
        ValueError: if a file cannot be written.
    """
    for name in (REPORT, METRICS, MACHINE):
        check_writable(folder / name)
    check_chorale(folder / CHORALE)
    for position in COMPARED:
        check_training(settings, folder=folder / position, devices=devices)


def compare(
    settings: MusicSettings,
    source: Source,
    *,
    folder: Path,
    bars: int = 8,
    devices: Devices,
    say: Callable[[str], None] = print,
) -> ComparisonResults | None:
    """Train and measure both models, and write the run's folder.

    The models differ in their positions alone: steps, seeds, data order and the first numbers of
    all other parameters are the same.

    Args:
        settings: sizes and budget.
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
    trained = {
        position: train_position(
            position, settings, source, folder=folder / position, devices=devices
        )
        for position in COMPARED
    }
    if rank_zero_only.rank:
        return None
    after_training = time.perf_counter()
    say("measuring on the held-out pieces")
    results = _measure(settings, source, trained)
    say(f"composing {bars} bars")
    chorale = compose(
        trained["huang"].model,
        source.vocabulary,
        source.ranges,
        bars=bars,
        seed=settings.training.seed,
        name="A chorale by the relative model",
    )
    files = write_chorale(folder / CHORALE, chorale)
    seconds = sum(model.time.seconds for model in trained.values())
    seconds = max(seconds + time.perf_counter() - after_training, time.perf_counter() - begun)
    results = replace(results, seconds=seconds)
    write_json(folder / METRICS, results.metrics())
    write_json(folder / MACHINE, results.machine)
    write_report(folder / REPORT, comparison_report(settings, source, results, chorale, *files))
    return results


def _measure(
    settings: MusicSettings, source: Source, trained: dict[str, TrainedModel]
) -> ComparisonResults:
    held_out, vocabulary, window = source.split.held_out, source.vocabulary, settings.window
    return ComparisonResults(
        trained=trained,
        held_out={
            name: held_out_nats(one.model, held_out, vocabulary, window=window)
            for name, one in trained.items()
        },
        counting=counting_baselines(source.split.train, held_out, vocabulary=vocabulary),
        lengths={
            name: lengths_test(one.model, held_out, vocabulary, window=window)
            for name, one in trained.items()
        },
        long_pieces=len(long_enough(held_out, window=window)),
        steps=settings.training.steps,
    )
