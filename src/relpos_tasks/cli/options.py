"""Options that several commands have, and what is checked of an option as it is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from typer.models import ArgumentInfo

from ..files import check_writable

__all__ = [
    "DataOption",
    "MusicCheckpoint",
    "TranslationCheckpoint",
    "ValidOption",
    "VisionCheckpoint",
    "at_least_zero",
    "check_not_read",
    "multiple_of_8",
    "picture_file",
    "positive_probability",
]


def _trained_model(example: str) -> ArgumentInfo:
    """The argument of a checkpoint; the example is a position that the task's runs compare."""
    return typer.Argument(
        help=f"A trained model: its folder (RUNS/NAME/{example}) or the .safetensors file in it.",
        show_default=False,
    )


MusicCheckpoint = Annotated[Path, _trained_model("huang")]
TranslationCheckpoint = Annotated[Path, _trained_model("shaw-16")]
VisionCheckpoint = Annotated[Path, _trained_model("grid")]
DataOption = Annotated[
    Path | None,
    typer.Option(
        help="A folder of MIDI files (performances); or the literature's grid of chorales, "
        "Jsb16thSeparated.json, plain or gzipped (pitches only). Without it: the chorales inside "
        "the music21 package.",
    ),
]
ValidOption = Annotated[
    bool,
    typer.Option(
        "--valid",
        help="Measure on the validation part, on which settings may be chosen, in place of the "
        "held-out one.",
    ),
]


def check_not_read(read: Path | None, written: Iterable[Path]) -> None:
    """Raise if a command would write over the file that it is given to read.

    Args:
        read: the file; None is let pass.
        written: what is to be written.

    Raises:
        ValueError: with the file.
    """
    for path in written:
        if read is not None and os.path.realpath(path) == os.path.realpath(read):
            raise ValueError(f"--out: must be another file than the one that is read, got {path}")


def multiple_of_8(window: int | None) -> int | None:
    """The window, if it is one.

    Args:
        window: in tokens; None is let pass.

    Raises:
        typer.BadParameter: otherwise, which names the option.
    """
    if window is not None and window % 8:
        raise typer.BadParameter(f"must be a multiple of 8, got {window}")
    return window


def at_least_zero(number: float) -> float:
    """The number, if it is one from 0 on.

    Args:
        number: any, also NaN and infinity, which Typer's own bounds let pass.

    Raises:
        typer.BadParameter: otherwise, which names the option.
    """
    if not (isfinite(number) and number >= 0):
        raise typer.BadParameter(f"must be a number >= 0, got {number}")
    return number


def picture_file(out: Path | None) -> Path | None:
    """The path, if a picture can be written there, before anything is read.

    Args:
        out: of the file; None is let pass.

    Raises:
        typer.BadParameter: otherwise, which names the option.
    """
    if out is None:
        return None
    if out.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"must end in .png or .svg, got {str(out)!r}")
    try:
        check_writable(out)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return out


def positive_probability(number: float) -> float:
    """The number, if it is a probability above 0.

    Args:
        number: any, also NaN, which Typer's own bounds let pass.

    Raises:
        typer.BadParameter: otherwise, which names the option.
    """
    if not 0 < number <= 1:
        raise typer.BadParameter(f"must be above 0 and at most 1, got {number}")
    return number
