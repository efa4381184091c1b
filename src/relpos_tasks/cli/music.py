"""`relpos music`: train on chorales or performances, measure, and make new music.

Whatever is slow to import is imported inside the command that needs it.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .music_generate import generate
from .music_options import MusicOptions
from .options import DataOption, MusicCheckpoint, ValidOption, multiple_of_8
from .output import in_first_process, print_rows, say
from .training_options import PositionsOption, SeedsOption, with_training_options

if TYPE_CHECKING:
    from ..music.composer import Composer

__all__ = ["music"]

music = typer.Typer(
    help="Train on Bach's chorales or on performances (MIDI) with relative positions, compare, "
    "measure, and compose.",
    epilog="Begin with `relpos music compare --preset tiny` (a minute) or `relpos music compare`.",
)

_TRAINED_ON_VALID = "the validation pieces were trained on too: this says nothing of other music"


class Position(StrEnum):
    """Position schemes of the decoder."""

    huang = "huang"
    shaw = "shaw"
    absolute = "absolute"
    sinusoidal = "sinusoidal"
    none = "none"
    t5 = "t5"
    alibi = "alibi"
    kerple = "kerple"
    sandwich = "sandwich"
    gated = "gated"
    rotary = "rotary"
    xpos = "xpos"
    transformer_xl = "transformer-xl"
    deberta = "deberta"
    relative_logits = "relative-logits"
    absolute_keys = "absolute-keys"


@music.command()
@with_training_options(MusicOptions)
def compare(
    *,
    positions: PositionsOption = None,
    seeds: SeedsOption = 1,
    bars: Annotated[
        int | None,
        typer.Option(min=1, help="Bars of the new chorale, at most 256; by default 8."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds of the new performance, at most 900, with --data FOLDER; by default 30."
        ),
    ] = None,
    options: MusicOptions,
) -> None:
    """Train with absolute and with relative positions (huang, shaw), measure, write a report.

    The preset literature trains absolute and relative-logits.
    Writes RUNS/NAME/report.html (a page that needs no network), metrics.json, machine.json,
    chorale.mid, chorale.musicxml, chorale.wav, and a checkpoint per model (RUNS/NAME/huang, ...);
    with a folder of MIDI files performance.mid and performance.wav in place of the chorale.
    Stopped by Ctrl-C or otherwise, the same command goes on from the last checkpoint.
    """
    folder, settings = options.folder, options.settings()
    comparison = options.comparison(
        positions, known=map(str, Position), seeds=seeds, compared=settings.compared
    )
    options.check_used(comparison.positions)
    from ..music.compare import REPORT, check_comparison
    from ..music.compare import compare as run_comparison

    composer = _composer(options, bars, seconds)
    devices = options.where()
    check_comparison(settings, comparison, composer, folder=folder, devices=devices)
    source = options.read(settings)
    results = run_comparison(
        settings, comparison, source, composer, folder=folder, devices=devices, say=say
    )
    if results is not None:
        print_rows("held out, nats per token", {**results.held_out, **_named(results.counting)})
        typer.echo(f"report: {folder / REPORT}")


@music.command()
@with_training_options(MusicOptions)
def train(
    *,
    position: Annotated[Position, typer.Option(help="How the model knows where a token is.")],
    options: MusicOptions,
) -> None:
    """Train one model and print its nats per token on the validation pieces.

    Writes model.safetensors, model.json, last.ckpt (to go on from) and logs (CSV, TensorBoard)
    in RUNS/NAME/POSITION. `relpos music evaluate` measures it on the held-out pieces.
    """
    folder, settings = options.folder / position, options.settings()
    options.check_used([position])
    from ..music.train import check_training, train_position

    devices = options.where()
    check_training(settings, folder=folder, devices=devices)
    source = options.read(settings)
    say(f"pieces: {source.split}")
    trained = train_position(position, settings, source, folder=folder, devices=devices)
    if not in_first_process():
        return
    if settings.train_on_valid:
        say(_TRAINED_ON_VALID)
    for step, nats in trained.curves["valid"][-1:]:
        typer.echo(f"validation: {nats:.4f} nats per token at step {step}")
    typer.echo(f"checkpoint: {folder}")


@music.command()
def evaluate(
    checkpoint: MusicCheckpoint,
    data: DataOption = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=8,
            callback=multiple_of_8,
            help="Tokens that the model sees at once, a multiple of 8; as trained by default.",
        ),
    ] = None,
    lengths: Annotated[
        bool, typer.Option(help="Measure at twice and four times the window too.")
    ] = False,
    valid: ValidOption = False,
) -> None:
    """Print a model's nats per token on the held-out pieces, beside counting baselines.

    The pieces must be those that the model was trained beside: give --data again if it was
    trained with it.
    """
    from ..music.model import load_music, source_of, trains_on_valid
    from ..music.windows import (
        check_window,
        long_enough,
        nats_per_token,
        nats_per_token_by_length,
    )

    trained = load_music(checkpoint)
    source = source_of(trained, data, checkpoint, progress=sys.stderr.isatty())
    if valid and trains_on_valid(trained):
        say(_TRAINED_ON_VALID)
    # As many as were measured on where the model was compared.
    most = trained.about["settings"].get("held_out_tokens")
    model = trained.model
    part, sequences = ("validation", source.valid) if valid else ("held out", source.held_out)
    pieces = sequences(most, window=trained.window)
    if window is not None:
        check_window("--window:", window, pieces)
    window = window or trained.window
    one = len(pieces) == 1
    say(f"measuring on {len(pieces)} {part} {'piece' if one else 'pieces'}")
    name = f"{model.config.position}, {window:,} tokens"
    counting = {} if valid else _named(source.counting(most, window=trained.window))
    print_rows(
        f"{part}, nats per token",
        {name: nats_per_token(model, pieces, window=window)} | counting,
    )
    if lengths:
        measured = nats_per_token_by_length(model, pieces, window=window)
        count = len(long_enough(pieces, window=window))
        if not count:
            say(f"no piece has the {4 * window:,} tokens that the length test needs")
            return
        print_rows(
            f"{part}, on the {count} pieces of at least {4 * window:,} tokens",
            {f"{tokens:,} tokens": nats for tokens, nats in measured.items()},
        )


music.command()(generate)


def _composer(options: MusicOptions, bars: int | None, seconds: float | None) -> Composer:
    """Of the new piece: of as many bars or seconds as were asked for, or by default."""
    if options.performs:
        from ..music.performances.composer import PerformanceComposer

        if bars is not None:
            raise ValueError("--bars: is for chorales; with a folder of MIDI files give --seconds")
        return PerformanceComposer() if seconds is None else PerformanceComposer(seconds)
    from ..music.chorale_composer import ChoraleComposer

    if seconds is not None:
        raise ValueError("--seconds: must come with --data FOLDER of MIDI files; try --bars")
    return ChoraleComposer() if bars is None else ChoraleComposer(bars)


def _named(counting: Mapping[str, float]) -> dict[str, float]:
    return {f"counting: {name}": nats for name, nats in counting.items()}
