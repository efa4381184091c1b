"""`relpos adapt`: what relpos would take over of a saved model, and what that gains here."""

# ruff: noqa: PLC0415
from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["adapt_command"]


def adapt_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_FOLDER",
            help="A model of transformers, as `save_pretrained` writes it.",
            show_default=False,
        ),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Measure the gain on this machine, too.")
    ] = False,
    length: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1 << 24,
            help="Tokens, frames of features, samples of audio or patches of the check; by default "
            "2048 tokens or 30 seconds, or all that the model has room for.",
        ),
    ] = None,
    window: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="LEFT RIGHT",
            help="Also check an encoder whose tokens see only so many keys to either side.",
        ),
    ] = None,
) -> None:
    """Print which modules of a model `relpos.adapters.adapt` takes over, and why not the others.

    With --check a random input runs through the model as it is and adapted, in turns: time, peak
    memory, and the difference of the outputs. Nothing is written. The model is of one text, sound
    or image, with any head; of one that takes several, save the part that is to be checked.
    """
    for name, value in (("--length", length), ("--window", window)):
        if value is not None and not check:
            raise ValueError(f"{name}: must come with --check, got {name} alone")
    from relpos.adapters import adapt

    from ..adapting import load_pretrained, make_inputs, measure_gain

    loaded = load_pretrained(model)
    if not check:
        typer.echo(str(adapt(loaded)))
        return
    inputs, words = make_inputs(loaded, length)
    if sys.stderr.isatty():
        print(f"measuring on {words} ...", file=sys.stderr)
    gain = measure_gain(loaded, inputs, window=window)
    typer.echo(str(gain.report))
    typer.echo("\n".join([f"one forward pass of {words}:", *(f"  {x}" for x in gain.lines())]))
