"""What the line of a training shows in terminals of any width."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from relpos_tasks.training import progress_bar
from relpos_tasks.training.progress_bar import TrainingProgress

PARTS = ["loss 0.886 nats/token", "valid 0.841", "18,245 tokens/s"]


@pytest.mark.no_typecheck
@pytest.mark.parametrize(("width", "shown"), [(120, 3), (80, 2), (66, 1), (44, 0)])
@pytest.mark.parametrize("title", ["shaw", "transformer-xl"])
def test_the_name_the_steps_and_the_time_are_whole_at_any_width(
    monkeypatch, width: int, shown: int, title: str
):
    monkeypatch.setattr(progress_bar, "_figures", lambda trainer: PARTS)
    trainer: Any = SimpleNamespace(max_steps=1150, global_step=301)
    module: Any = None
    progress = TrainingProgress(title)
    progress.console = Console(width=width, force_terminal=True, file=io.StringIO())
    progress.on_train_start(trainer, module)
    progress.on_train_batch_end(trainer, module)
    assert progress.bar is not None
    drawn = Console(width=width, file=io.StringIO(), color_system=None)
    drawn.print(progress.bar.get_renderable())
    progress.on_train_end(trainer, module)
    line = drawn.file.getvalue()  # type: ignore[attr-defined]
    assert f"{title} " in line
    assert "301/1150 " in line
    assert "-:--:--" in line
    # For which there is room of 10 hours and more too.
    assert len(line.rstrip()) <= width - 2
    assert line.count("\n") == 1
    assert "…" not in line
    assert [part in line for part in PARTS] == [n < shown for n in range(3)]
