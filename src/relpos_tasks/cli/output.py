"""What commands print: lines on what is being done, and rows of figures."""

from __future__ import annotations

import os
from collections.abc import Mapping

import typer

__all__ = ["in_first_process", "print_rows", "say"]


def say(line: str) -> None:
    """Print a line on what is being done, on stderr and once for all devices.

    Args:
        line: without its end.
    """
    if in_first_process():
        typer.echo(line, err=True)


def in_first_process() -> bool:
    """Whether this is the first process: Lightning starts the program once per device."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def print_rows(title: str, rows: Mapping[str, float], *, digits: int = 4) -> None:
    """Print a title, and below it a figure for each name.

    Args:
        title: of the rows.
        rows: figures by name.
        digits: after the point.
    """
    width = max(map(len, rows), default=0)
    typer.echo(title)
    for name, value in rows.items():
        typer.echo(f"  {name:<{width}}  {value:.{digits}f}")
