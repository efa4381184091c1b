"""`relpos music generate`: a new chorale, or a performance begun or continued.

Whatever is slow to import is imported inside the function that needs it.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..training.limits import MAX_SEED
from .options import MusicCheckpoint, at_least_zero, check_not_read, positive_probability
from .output import say_unsung

if TYPE_CHECKING:
    from ..music.model import MusicModel

__all__ = ["generate"]

_BARS, _SECONDS = 8, 30.0


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn; the fields are arguments of `compose` and of `perform`."""

    temperature: float
    top_p: float
    seed: int


def generate(
    checkpoint: MusicCheckpoint,
    bars: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Of a chorale: bars of 4/4 after an upbeat of a quarter, the last one that "
            f"quarter short; at most 256, by default {_BARS}. Not with --melody.",
        ),
    ] = None,
    melody: Annotated[
        Path | None,
        typer.Option(
            help="Of a chorale: a tune for the soprano to sing note for note, .mid or .musicxml, "
            "on the nearest sixteenths; the other voices are composed to it. The chorale is as "
            "long as the tune, and has a tempo of its own.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help=f"Of a performance: how long, at most 900; by default {_SECONDS:g}. With --prime: "
            "how long after it.",
        ),
    ] = None,
    prime: Annotated[
        Path | None,
        typer.Option(
            help="Of a performance: a MIDI file to go on from. What is written begins with it.",
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
            min=0, max=MAX_SEED, help="Of the drawing: the same seed gives the same music."
        ),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The files' name without ending, by default chorale or performance: .mid and .wav "
            "are added, and .musicxml for a chorale.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compose a chorale, harmonise a melody, or begin or continue a performance.

    What the checkpoint was trained on decides which. Written as MIDI and sound, chorales as
    MusicXML too.
    """
    from ..music.generate import check_bars
    from ..music.kinds import PERFORMANCES
    from ..music.model import load_music
    from ..music.performances.generate import check_seconds
    from ..music.stems import checked_stem

    if bars is not None:
        check_bars("--bars:", bars)
        if melody is not None:
            raise ValueError(
                "--bars: must not come with --melody: the chorale is as long as the tune"
            )
    if seconds is not None:
        check_seconds("--seconds:", seconds)
    stem = None if out is None else checked_stem(out, example="tune")
    trained = load_music(checkpoint)
    performs = trained.kind == PERFORMANCES
    chorales = {"--bars": bars, "--melody": melody}
    performances = {"--seconds": seconds, "--prime": prime}
    own, foreign = (performances, chorales) if performs else (chorales, performances)
    for option, value in foreign.items():
        if value is not None:
            raise ValueError(
                f"{option}: is not for a model of {trained.kind}, which {checkpoint} is; "
                f"it takes {' and '.join(own)}"
            )
    drawing = Drawing(temperature, top_p, seed)
    if performs:
        _perform(trained, stem, prime, _SECONDS if seconds is None else seconds, drawing)
    else:
        _compose(trained, stem, melody, bars or _BARS, drawing)


def _compose(
    trained: MusicModel, stem: Path | None, melody: Path | None, bars: int, drawing: Drawing
) -> None:
    from ..music.export import chorale_stem, write_chorale
    from ..music.generate import STEPS_PER_BAR, check_melody, compose
    from ..music.melody import read_melody
    from ..music.stems import PIECE_ENDINGS, files_of
    from ..progress import show_progress

    stem = stem or chorale_stem(Path("chorale"))
    check_not_read(melody, files_of(stem, PIECE_ENDINGS))
    vocabulary, ranges = trained.of_chorales()
    lowest, highest = (int(pitch) for pitch in ranges[0])
    tune = None if melody is None else read_melody(melody, lowest=lowest, highest=highest)
    if tune is not None:
        check_melody(f"{melody}: the melody", tune)
        say_unsung(str(melody), tune.unsung)
    steps = bars * STEPS_PER_BAR if tune is None else len(tune.pitches)
    with show_progress("composing", steps, "sixteenths") as progress:
        piece = compose(
            trained.model,
            vocabulary,
            ranges,
            bars=bars,
            melody=tune,
            **vars(drawing),
            name=stem.name if melody is None else melody.stem,
            progress=progress,
        )
        write_chorale(stem, piece)
    length = f"{piece.steps / 4:g} quarter{'' if piece.steps == 4 else 's'}"
    typer.echo(f"wrote {stem}.mid, {stem}.musicxml and {stem}.wav ({length})")


def _perform(
    trained: MusicModel, stem: Path | None, prime: Path | None, seconds: float, drawing: Drawing
) -> None:
    from ..music.performances.export import performance_stem, write_performance
    from ..music.performances.generate import check_prime, perform
    from ..music.performances.midi import read_performance
    from ..music.stems import PIECE_ENDINGS, files_of
    from ..progress import show_progress

    stem = stem or performance_stem(Path("performance"))
    check_not_read(prime, files_of(stem, PIECE_ENDINGS))
    begun = None if prime is None else read_performance(prime)
    if begun is not None:
        check_prime(f"--prime: {prime}", begun)
    with show_progress("performing", ceil(seconds), "seconds") as progress:
        performance = perform(
            trained.model,
            window=trained.window,
            seconds=seconds,
            prime=begun,
            **vars(drawing),
            name=stem.name,
            progress=progress,
        )
        write_performance(stem, performance)
    length = f"{performance.seconds:.1f} seconds, {performance.notes:,} notes"
    given = "" if begun is None else f", of which {begun.seconds:.1f} seconds were given"
    typer.echo(f"wrote {stem}.mid and {stem}.wav ({length}{given})")
