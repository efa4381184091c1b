"""`relpos music`: train, measure and compose chorales.

Whatever is slow to import is imported inside the command that needs it.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..training.limits import MAX_SEED, MAX_STEPS
from .options import CheckpointArgument, DataOption

if TYPE_CHECKING:
    from ..music.settings import MusicSettings
    from ..training.devices import Devices

__all__ = ["music"]

music = typer.Typer(
    help="Train on Bach's chorales with relative positions, compare, measure, and compose.",
    epilog="Begin with `relpos music compare --preset tiny` (a minute) or `relpos music compare`.",
)

# Of a folder's name, on most systems.
_MAX_NAME_BYTES = 255


class Preset(StrEnum):
    """Sizes and budgets."""

    default = "default"
    tiny = "tiny"
    paper = "paper"


class Position(StrEnum):
    """Position schemes of the decoder."""

    huang = "huang"
    shaw = "shaw"
    absolute = "absolute"
    sinusoidal = "sinusoidal"
    none = "none"


def _multiple_of_8(window: int | None) -> int | None:
    if window is not None and window % 8:
        raise typer.BadParameter(f"must be a multiple of 8, got {window}")
    return window


PresetOption = Annotated[
    Preset,
    typer.Option(
        help="Sizes and budget: default (two CPU cores, minutes), tiny (the whole job in a "
        "minute), paper (the sizes of Huang et al. 2018, for a GPU).",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=MAX_STEPS, help="Training steps of each model, in place of the preset's."
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(min=1, help="Sequences per step over all devices, in place of the preset's."),
]
WindowOption = Annotated[
    int | None,
    typer.Option(
        min=8,
        callback=_multiple_of_8,
        help="Tokens in a training sequence, a multiple of 8, in place of the preset's. "
        "Four tokens are a sixteenth.",
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(min=0, max=MAX_SEED, help="Of weights, data order, dropout and sampling."),
]
BarsOption = Annotated[
    int, typer.Option(min=1, help="Bars of the chorale to generate, at most 256.")
]
NameOption = Annotated[
    str | None,
    typer.Option(
        help="Of the run: its folder is RUNS/NAME. Made from the data and the preset by default. "
        "A run of this name with the same settings is taken up where it was stopped.",
    ),
]
RunsOption = Annotated[Path, typer.Option(help="The folder of all runs.")]
AcceleratorOption = Annotated[
    str, typer.Option(help="Lightning's: auto, cpu, gpu (or cuda), mps, tpu.")
]
DevicesOption = Annotated[
    str, typer.Option(help="Lightning's: how many (2), which (0,1), or auto for all.")
]
PrecisionOption = Annotated[
    str, typer.Option(help="Lightning's: 32-true, bf16-mixed, 16-mixed, 64-true.")
]


@music.command()
def compare(
    data: DataOption = None,
    preset: PresetOption = Preset.default,
    steps: StepsOption = None,
    batch: BatchOption = None,
    window: WindowOption = None,
    seed: SeedOption = 0,
    bars: BarsOption = 8,
    name: NameOption = None,
    runs: RunsOption = Path("runs"),
    accelerator: AcceleratorOption = "auto",
    devices: DevicesOption = "1",
    precision: PrecisionOption = "32-true",
) -> None:
    """Train with relative (huang) and with absolute positions, measure both, write a report.

    Writes RUNS/NAME/report.html (a page that needs no network), metrics.json, chorale.mid,
    chorale.musicxml, chorale.wav, and a checkpoint per model (RUNS/NAME/huang, .../absolute).
    Stopped by Ctrl-C or otherwise, the same command goes on from the last checkpoint.
    """
    folder = runs / _name(name, data, preset)
    settings = _settings(preset, steps, batch, window, seed)
    from ..files import check_writable
    from ..music.compare import COMPARED
    from ..music.compare import compare as run_comparison
    from ..music.generate import check_bars
    from ..music.source import read_source
    from ..music.train import check_training

    check_bars("--bars:", bars)
    check_writable(folder / "report.html")
    where = _devices(accelerator, devices, precision)
    for position in COMPARED:
        check_training(settings, folder=folder / position, devices=where)
    source = read_source(data, progress=sys.stderr.isatty())
    results = run_comparison(settings, source, folder=folder, bars=bars, devices=where, say=_say)
    if results is not None:
        _print_table(results)
        typer.echo(f"report: {folder / 'report.html'}")


@music.command()
def train(
    position: Annotated[Position, typer.Option(help="How the model knows where a token is.")],
    data: DataOption = None,
    preset: PresetOption = Preset.default,
    steps: StepsOption = None,
    batch: BatchOption = None,
    window: WindowOption = None,
    seed: SeedOption = 0,
    name: NameOption = None,
    runs: RunsOption = Path("runs"),
    accelerator: AcceleratorOption = "auto",
    devices: DevicesOption = "1",
    precision: PrecisionOption = "32-true",
) -> None:
    """Train one model and print its nats per token on the validation pieces.

    Writes model.safetensors, model.json, last.ckpt (to go on from) and logs (CSV, TensorBoard)
    in RUNS/NAME/POSITION. `relpos music evaluate` measures it on the held-out pieces.
    """
    folder = runs / _name(name, data, preset) / position
    settings = _settings(preset, steps, batch, window, seed)
    from ..music.source import read_source
    from ..music.train import check_training, train_position

    where = _devices(accelerator, devices, precision)
    check_training(settings, folder=folder, devices=where)
    source = read_source(data, progress=sys.stderr.isatty())
    _say(f"pieces: {source.split}")
    trained = train_position(position, settings, source, folder=folder, devices=where)
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
            callback=_multiple_of_8,
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

    music = load_music(checkpoint)
    source = read_source(data, progress=sys.stderr.isatty())
    check_source(music, source, checkpoint)
    pieces, vocabulary = source.split.held_out, music.vocabulary
    if window is not None:
        check_window("--window:", window, pieces)
    window = window or music.window
    _say(f"measuring on {len(pieces)} pieces")
    nats = held_out_nats(music.model, pieces, vocabulary, window=window)
    rows = [(f"{music.model.config.position}, {window:,} tokens", nats)]
    rows += [
        (f"counting: {name}", value)
        for name, value in counting_baselines(
            source.split.train, pieces, vocabulary=vocabulary
        ).items()
    ]
    _print_rows("held out, nats per token", rows)
    if lengths:
        measured = lengths_test(music.model, pieces, vocabulary, window=window)
        count = len(long_enough(pieces, window=window))
        _print_rows(
            f"on the {count} held-out pieces of at least {4 * window:,} tokens",
            [(f"{tokens:,} tokens", value) for tokens, value in measured.items()],
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
            min=0.0, help="1 draws as the model believes, less is safer, 0 the likeliest."
        ),
    ] = 0.9,
    top_p: Annotated[
        float,
        typer.Option(
            help="Draw from the likeliest tokens that hold this much probability; 1: all."
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
    music = load_music(checkpoint)
    lowest, highest = (int(pitch) for pitch in music.ranges[0])
    tune = None if melody is None else read_melody(melody, lowest=lowest, highest=highest)
    steps = bars * STEPS_PER_BAR if tune is None else len(tune.pitches)
    with show_progress("composing", steps, "sixteenths") as progress:
        piece = compose(
            music.model,
            music.vocabulary,
            music.ranges,
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


def _settings(
    preset: Preset, steps: int | None, batch: int | None, window: int | None, seed: int
) -> MusicSettings:
    from ..music.settings import preset as settings_of

    return settings_of(preset, steps=steps, batch=batch, window=window, seed=seed)


def _devices(accelerator: str, devices: str, precision: str) -> Devices:
    from ..training.devices import Devices

    return Devices(accelerator, devices, precision)


def _name(name: str | None, data: Path | None, preset: Preset) -> str:
    if name is None:
        what = "chorales" if data is None else "literature"
        return what if preset is Preset.default else f"{what}-{preset}"
    if name in ("", ".", "..") or Path(name).name != name:
        raise ValueError(
            f"--name: must be a folder's name without slashes, and not '.' or '..', got {name!r}"
        )
    # What systems refuse, or terminals do not show.
    if not name.isprintable() or len(os.fsencode(name)) > _MAX_NAME_BYTES:
        raise ValueError(
            f"--name: must be printable and at most {_MAX_NAME_BYTES} bytes long, got {name!r}"
        )
    return name


def _say(line: str) -> None:
    if _first_process():
        typer.echo(line, err=True)


def _first_process() -> bool:
    """Lightning starts this program once per device, with a number each."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _print_table(results: Any) -> None:
    rows = [(name, nats) for name, nats in results.held_out.items()]
    rows += [(f"counting: {name}", nats) for name, nats in results.counting.items()]
    _print_rows("held out, nats per token", rows)


def _print_rows(title: str, rows: list[tuple[str, float]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    typer.echo(title)
    for name, nats in rows:
        typer.echo(f"  {name:<{width}}  {nats:.4f}")
