"""How far a training is: a bar in a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from .task import Task

__all__ = ["TrainingProgress"]

# At the latest a minute after a line the next one follows, if a step has ended by then.
_SECONDS_BETWEEN_LINES = 60.0
# In characters; figures are seldom longer.
_LEAST_BAR, _MOST_BAR, _USUAL_FIGURES = 6, 40, 56


class TrainingProgress(ProgressBar):
    """Steps done, training loss, validation loss, units per second.

    Args:
        title: what is being trained.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title or "train"
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.bar_width = _MOST_BAR
        self.row: Any = None
        self.since = 0.0

    def disable(self) -> None:
        """Say nothing: another process does."""
        self.console.quiet = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the bar, or where the training begins."""
        if not self.console.is_terminal or self.console.quiet:
            self._print(trainer)
            return
        self.bar_width = min(max(self._room(trainer) - _USUAL_FIGURES, _LEAST_BAR), _MOST_BAR)
        self.bar = Progress(
            # It turns while a step takes long.
            SpinnerColumn(),
            TextColumn("{task.description:>10}"),
            BarColumn(self.bar_width),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.row = self.bar.add_task(
            self.title, total=trainer.max_steps, completed=trainer.global_step, figures=""
        )
        self.bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Move on."""
        step = trainer.global_step
        if self.bar is not None:
            self._show(trainer)
        elif step < trainer.max_steps and (
            step % max(1, trainer.max_steps // 10) == 0
            or time.monotonic() - self.since >= _SECONDS_BETWEEN_LINES
        ):
            self._print(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the finished bar, or print the last line, after the last validation."""
        if self.bar is not None:
            self._show(trainer)
        else:
            self._print(trainer)
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the bar as it is."""
        self._stop()

    def _show(self, trainer: Trainer) -> None:
        """Move the bar to the step that is done."""
        assert self.bar is not None
        room = self._room(trainer) - self.bar_width - 1
        figures = _figures_in(_figures(trainer), room)
        self.bar.update(self.row, completed=trainer.global_step, figures=figures)

    def _print(self, trainer: Trainer) -> None:
        self.since = time.monotonic()
        step = f"{self.title}: step {trainer.global_step}/{trainer.max_steps}"
        self.console.print(", ".join([step, *_figures(trainer)]), highlight=False, soft_wrap=True)

    def _room(self, trainer: Trainer) -> int:
        """The characters for bar and figures; of a line that is too long rich cuts off any."""
        steps = 2 * len(str(trainer.max_steps)) + len("/")
        widths = (len("*"), max(len(self.title), 10), steps, len("000:00:00"))
        return self.console.width - sum(width + 1 for width in widths)

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _figures(trainer: Trainer) -> list[str]:
    """Those that there are, the most wanted first."""
    figures, task = trainer.callback_metrics, trainer.lightning_module
    assert isinstance(task, Task)
    parts = []
    for name, text in (
        ("train/loss", f"loss {{:.3f}} {task.loss_unit}"),
        ("valid/loss", "valid {:.3f}"),
        (task.rate_name, f"{{:,.0f}} {task.units}/s"),
    ):
        if name in figures:
            parts.append(text.format(float(figures[name])))
    return parts


def _figures_in(parts: list[str], room: int) -> str:
    """As many of the first as there is room for, in characters."""
    while parts and len(", ".join(parts)) > room:
        parts = parts[:-1]
    return ", ".join(parts)
