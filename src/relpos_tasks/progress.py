"""How far a long work is: a bar in a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

__all__ = ["shown_progress"]

# Whoever reads a log wants to see life, and not every step.
_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def shown_progress(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show on stderr how much is done.

    Args:
        title: what is being done.
        total: how much there is to do.
        unit: of what, in the plural.

    Yields:
        A function to call with what is done so far.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title, total, unit)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        row = bar.add_task(title, total=total)
        yield lambda done: bar.update(row, completed=done)


def _lines(title: str, total: int, unit: str) -> Callable[[int], None]:
    since = time.monotonic()

    def show(done: int) -> None:
        nonlocal since
        if time.monotonic() - since >= _SECONDS_BETWEEN_LINES:
            since = time.monotonic()
            print(f"{title}: {done:,} of {total:,} {unit}", file=sys.stderr, flush=True)

    return show
