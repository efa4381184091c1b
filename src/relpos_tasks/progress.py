"""That long work goes on, and how far: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["show_activity", "show_progress"]

# Whoever reads a log wants to see life, and not every step.
_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def show_progress(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
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
        _spinner(console),
        TextColumn("{task.description}"),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        row = bar.add_task(title, total=total)
        yield lambda done: bar.update(row, completed=done)


@contextmanager
def show_activity(title: str) -> Iterator[None]:
    """Show on stderr that one thing is being done, and for how long already.

    For work that cannot tell how far it is.

    Args:
        title: what is being done.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        columns = _spinner(console), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            bar.add_task(title, total=None)
            yield
        return
    finished = Event()
    thread = Thread(target=_tell_time, args=(title, finished), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _spinner(console: Console) -> SpinnerColumn:
    return SpinnerColumn("line" if console.options.ascii_only else "dots")


def _lines(title: str, total: int, unit: str) -> Callable[[int], None]:
    since = time.monotonic()

    def show(done: int) -> None:
        nonlocal since
        if time.monotonic() - since >= _SECONDS_BETWEEN_LINES:
            since = time.monotonic()
            print(f"{title}: {done:,} of {total:,} {unit}", file=sys.stderr, flush=True)

    return show


def _tell_time(title: str, finished: Event) -> None:
    since = time.monotonic()
    while not finished.wait(_SECONDS_BETWEEN_LINES):
        print(f"{title}: {time.monotonic() - since:.0f} s so far", file=sys.stderr, flush=True)
