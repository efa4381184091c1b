"""A comparison from the first training to the page: what `compare` of every task does alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from lightning.pytorch.utilities import rank_zero_only

from ..files import check_writable, json_text, remove_partial, utf8, write_together
from ..training.comparison import Comparison
from ..training.devices import Devices
from ..training.measuring import on_measuring_device
from ..training.preflight import check_data
from ..training.trained import TrainedModel
from .blocks import Report
from .page import render
from .replaced import replaced_report

__all__ = ["MACHINE", "METRICS", "REPORT", "check_files", "compare_and_report"]

REPORT = "report.html"
METRICS = "metrics.json"
MACHINE = "machine.json"

# Seconds: far more than any of these files takes to be written.
_HOUR = 3600.0


@runtime_checkable
class Results(Protocol):
    """A frozen dataclass of all numbers of a comparison."""

    @property
    def seconds(self) -> float:
        """Of the whole job."""
        ...

    @property
    def machine(self) -> dict[str, str]:
        """On what it was done."""
        ...

    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds."""
        ...


ResultsT = TypeVar("ResultsT", bound=Results)
ModelT = TypeVar("ModelT", bound=Any)


def check_files(folder: Path) -> None:
    """Raise if a comparison could not write what it finds, before anything is trained.

    Args:
        folder: of the run.

    Raises:
        ValueError: that names the file and what is in the way.
    """
    for name in (REPORT, METRICS, MACHINE):
        check_writable(folder / name)
        if (folder / name).exists() and not (folder / METRICS).exists():
            raise ValueError(
                f"{folder / name}: must be of a comparison, beside its {METRICS}, to be replaced; "
                "choose another --name, or move that file"
            )


def compare_and_report(
    comparison: Comparison,
    *,
    folder: Path,
    devices: Devices,
    train: Callable[[str, int, Path], TrainedModel[ModelT]],
    measure: Callable[[Mapping[str, Sequence[TrainedModel[ModelT]]]], ResultsT],
    report: Callable[[ResultsT], Report],
    about: Mapping[str, Any],
    say: Callable[[str], None],
) -> ResultsT | None:
    """Train and measure all models, and write the run's folder.

    Args:
        comparison: what is trained.
        folder: of the run; a run in it with the same settings is resumed.
        devices: where models are trained, and measured if that is a GPU.
        train: trains one model, given position, seed and folder.
        measure: what all models are worth.
        report: the page, and the files that belong to it.
        about: what `metrics.json` says beside the numbers, as `conditions` makes it.
        say: gets a line where the report of another comparison will be replaced.

    Returns:
        The numbers with `seconds`, those of all runs of the training and the rest of this one; None
        in the processes of other devices.

    Raises:
        TrainingError: if the folder holds a run with other settings or on other data.
    """
    for _, _, where in comparison.folders(folder):
        check_data(where, name=about["data"]["name"], digest=about["data"]["digest"])
    if not rank_zero_only.rank and (replaced := replaced_report(folder / METRICS, comparison)):
        say(replaced)
    begun = time.perf_counter()
    trained = comparison.train(folder, train)
    if rank_zero_only.rank:
        return None
    after_training = time.perf_counter()
    models = [one.model for of_seeds in trained.values() for one in of_seeds]
    with on_measuring_device(models, devices):
        results = measure(trained)
    page = report(results)
    # Models that were trained before this run took their time then.
    spent = sum(one.time.seconds for of_seeds in trained.values() for one in of_seeds)
    now = time.perf_counter()
    seconds = max(spent + now - after_training, now - begun)
    results: ResultsT = replace(results, seconds=seconds)  # type: ignore[type-var]
    contents = {
        Path(METRICS): utf8(json_text(results.metrics() | dict(about))),
        Path(MACHINE): utf8(json_text(results.machine)),
        Path(REPORT): utf8(render(page)),
    }
    for section in page.sections:
        contents |= section.files
    for where in (folder, *(where for _, _, where in comparison.folders(folder))):
        remove_partial(where, older_than=_HOUR)
    # All or none: a page beside the numbers or the music of another comparison would be wrong.
    write_together({folder / path: content for path, content in contents.items()})
    return results
