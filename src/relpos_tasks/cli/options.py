"""What the commands on a trained model are given alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["CheckpointArgument", "DataOption"]

CheckpointArgument = Annotated[
    Path,
    typer.Argument(
        help="A trained model: its folder (RUNS/NAME/huang) or the .safetensors file in it.",
        show_default=False,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        help="The literature's grid, jsb-chorales-16th.json or .json.gz (pitches only). "
        "Without it: the chorales inside the music21 package.",
    ),
]
