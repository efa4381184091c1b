"""What commands print: lines on what is being done, and rows of figures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import typer

__all__ = ["in_first_process", "loading", "print_rows", "say", "say_unsung"]


@contextmanager
def loading() -> Iterator[None]:
    """Show in a terminal that something is imported which takes seconds."""
    if not (sys.stderr.isatty() and in_first_process()):
        yield
        return
    from ..progress import show_activity  # noqa: PLC0415

    with show_activity("loading torch and Lightning"):
        yield


def say(line: str) -> None:
    """Print a line on what is being done, on stderr and once for all devices.

    Args:
        line: without its end.
    """
    if in_first_process():
        typer.echo(line, err=True)


def say_unsung(melody: str, unsung: int) -> None:
    """Print how many notes of a file's melody are not sung, and why, where there are any.

    Args:
        melody: the file.
        unsung: notes.
    """
    if unsung:
        notes = "1 note is" if unsung == 1 else f"{unsung:,} notes are"
        say(f"{melody}: {notes} not sung: a sixteenth holds one note, of a chord the highest")


def in_first_process() -> bool:
    """Whether this is the first process: Lightning starts the program once per device."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def print_rows(title: str, rows: Mapping[str, float | Sequence[float]], *, digits: int = 4) -> None:
    """Print a title, and below it a figure for each name.

    Args:
        title: of the rows.
        rows: figures by name, or those of each seed, of which mean and spread are printed.
        digits: after the point.
    """
    from ..training.comparison import mean_and_spread  # noqa: PLC0415

    width = max(map(len, rows), default=0)
    typer.echo(title)
    for name, value in rows.items():
        values = [value] if isinstance(value, float | int) else value
        typer.echo(f"  {name:<{width}}  {mean_and_spread(values, digits=digits)}")
