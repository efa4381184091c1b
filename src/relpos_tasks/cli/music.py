"""`relpos music`: train, measure and compose chorales.

Whatever is slow to import is imported inside the command that needs it.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..training.limits import MAX_SEED
from .music_options import MusicOptions
from .options import (
    CheckpointArgument,
    DataOption,
    at_least_zero,
    multiple_of_8,
    positive_probability,
)
from .training_options import PositionsOption, SeedsOption, with_training_options

__all__ = ["music"]

music = typer.Typer(
    help="Train on Bach's chorales with relative positions, compare, measure, and compose.",
    epilog="Begin with `relpos music compare --preset tiny` (a minute) or `relpos music compare`.",
)


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
    positions: PositionsOption = "absolute,huang,shaw",
    seeds: SeedsOption = 1,
    bars: Annotated[
        int, typer.Option(min=1, help="Bars of the chorale to generate, at most 256.")
    ] = 8,
    options: MusicOptions,
) -> None:
    """Train with absolute and with relative positions (huang, shaw), measure, write a report.

    Writes RUNS/NAME/report.html (a page that needs no network), metrics.json, machine.json,
    chorale.mid, chorale.musicxml, chorale.wav, and a checkpoint per model (RUNS/NAME/huang, ...).
    Stopped by Ctrl-C or otherwise, the same command goes on from the last checkpoint.
    """
    folder, settings = options.folder, options.settings()
    comparison = options.comparison(positions, known=map(str, Position), seeds=seeds)
    from ..music.compare import REPORT, check_comparison
    from ..music.compare import compare as run_comparison
    from ..music.generate import check_bars
    from ..music.source import read_source

    check_bars("--bars:", bars)
    devices = options.where()
    check_comparison(settings, comparison, folder=folder, devices=devices)
    source = read_source(options.data, progress=sys.stderr.isatty())
    results = run_comparison(
        settings, comparison, source, folder=folder, bars=bars, devices=devices, say=_say
    )
    if results is not None:
        _print_rows("held out, nats per token", results.mean, counting=results.counting)
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
    from ..music.source import read_source
    from ..music.train import check_training, train_position

    devices = options.where()
    check_training(settings, folder=folder, devices=devices)
    source = read_source(options.data, progress=sys.stderr.isatty())
    _say(f"pieces: {source.split}")
    trained = train_position(position, settings, source, folder=folder, devices=devices)
    if not _first_process():
        return
    for step, nats in trained.curves["valid"][-1:]:
        typer.echo(f"validation: {nats:.4f} nats per token at step {step}")
    typer.echo(f"checkpoint: {folder}")


@music.command()
def evaluate(
    checkpoint: CheckpointArgument,
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
) -> None:
    """Print a model's nats per token on the held-out pieces, beside counting baselines.

    The pieces must be those that the model was trained beside: give --data again if it was
    trained with it.
    """
    from ..music.baselines import counting_baselines
    from ..music.evaluate import check_window, held_out_nats, lengths_test, long_enough
    from ..music.model import check_source, load_music
    from ..music.source import read_source

    trained = load_music(checkpoint)
    source = read_source(data, progress=sys.stderr.isatty())
    check_source(trained, source, checkpoint)
    model, pieces, vocabulary = trained.model, source.split.held_out, trained.vocabulary
    if window is not None:
        check_window("--window:", window, pieces)
    window = window or trained.window
    _say(f"measuring on {len(pieces)} pieces")
    _print_rows(
        "held out, nats per token",
        {
            f"{model.config.position}, {window:,} tokens": held_out_nats(
                model, pieces, vocabulary, window=window
            )
        },
        counting=counting_baselines(source.split.train, pieces, vocabulary=vocabulary),
    )
    if lengths:
        measured = lengths_test(model, pieces, vocabulary, window=window)
        count = len(long_enough(pieces, window=window))
        _print_rows(
            f"on the {count} held-out pieces of at least {4 * window:,} tokens",
            {f"{tokens:,} tokens": nats for tokens, nats in measured.items()},
        )


@music.command()
def generate(
    checkpoint: CheckpointArgument,
    bars: Annotated[
        int,
        typer.Option(
            min=1,
            help="Bars of 4/4 after an upbeat of a quarter, the last one that quarter short; at "
            "most 256. Not used with --melody.",
        ),
    ] = 8,
    melody: Annotated[
        Path | None,
        typer.Option(
            help="A tune for the soprano to sing note for note, .mid or .musicxml; the other "
            "voices are composed to it. The chorale is as long as the tune.",
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(
            callback=at_least_zero,
            help="1 draws as the model believes, less is safer, 0 the likeliest.",
        ),
    ] = 0.9,
    top_p: Annotated[
        float,
        typer.Option(
            callback=positive_probability,
            help="Draw from the likeliest tokens that hold this much probability; 1: all.",
        ),
    ] = 0.95,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_SEED, help="Of the drawing: the same seed gives the same chorale."
        ),
    ] = 0,
    out: Annotated[
        Path,
        typer.Option(help="The files' name without ending: .mid, .musicxml and .wav are added."),
    ] = Path("chorale"),
) -> None:
    """Compose a chorale, or harmonise a melody, and write it as MIDI, MusicXML and sound."""
    from ..music.export import chorale_stem, write_chorale
    from ..music.generate import STEPS_PER_BAR, check_bars, compose
    from ..music.melody import read_melody
    from ..music.model import load_music
    from ..progress import show_progress

    check_bars("--bars:", bars)
    stem = chorale_stem(out)
    trained = load_music(checkpoint)
    lowest, highest = (int(pitch) for pitch in trained.ranges[0])
    tune = None if melody is None else read_melody(melody, lowest=lowest, highest=highest)
    steps = bars * STEPS_PER_BAR if tune is None else len(tune.pitches)
    with show_progress("composing", steps, "sixteenths") as progress:
        piece = compose(
            trained.model,
            trained.vocabulary,
            trained.ranges,
            bars=bars,
            melody=tune,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            name=stem.name if melody is None else melody.stem,
            progress=progress,
        )
        write_chorale(stem, piece)
    length = f"{piece.steps / 4:g} quarter{'' if piece.steps == 4 else 's'}"
    typer.echo(f"wrote {stem}.mid, {stem}.musicxml and {stem}.wav ({length})")


def _say(line: str) -> None:
    if _first_process():
        typer.echo(line, err=True)


def _first_process() -> bool:
    """Lightning starts this program once per device, with a number each."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _print_rows(
    title: str, nats: Mapping[str, float], counting: Mapping[str, float] | None = None
) -> None:
    """A title, and below it nats per token by name; counting baselines are named as such."""
    rows = dict(nats) | {f"counting: {name}": value for name, value in (counting or {}).items()}
    width = max(map(len, rows), default=0)
    typer.echo(title)
    for name, value in rows.items():
        typer.echo(f"  {name:<{width}}  {value:.4f}")
