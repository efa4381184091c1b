"""`relpos translation`: train encoder-decoders, measure them, translate and harmonise.

Whatever is slow to import is imported inside the command that needs it.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import TranslationCheckpoint, ValidOption, check_not_read
from .output import in_first_process, print_rows, say, say_unsung
from .training_options import PositionsOption, SeedsOption, with_training_options
from .translation_options import (
    AlphaOption,
    BeamOption,
    PairsOption,
    SourceOption,
    TargetOption,
    TranslationOptions,
)

__all__ = ["translation"]

translation = typer.Typer(
    help="Train encoder-decoders on parallel text or chorales with relative positions, compare, "
    "measure, translate and harmonise.",
    epilog="Begin with `relpos translation compare --chorales --preset tiny` (a minute, no "
    "download), or with text of yours: `relpos translation compare --data FOLDER`.",
)


@translation.command()
@with_training_options(TranslationOptions)
def compare(
    *,
    positions: PositionsOption = None,
    ablation: Annotated[
        bool,
        typer.Option(
            "--ablation",
            help="Compare Shaw's clipping distances 0, 1, 2, 4, 16, and its keys and values alone.",
        ),
    ] = False,
    seeds: SeedsOption = 1,
    options: TranslationOptions,
) -> None:
    """Train with sinusoidal and with relative positions (Shaw), translate, measure, report.

    The first position is what the others are compared to: sinusoidal by default, with Shaw's
    clipped at 16 and at 0; with --length-test learned absolute ones in place of the last.
    Writes RUNS/NAME/report.html (a page that needs no network), metrics.json, machine.json, and a
    checkpoint per model (RUNS/NAME/shaw-16, ...); with --chorales also a held-out soprano
    harmonised: harmony.mid, harmony.musicxml, harmony.wav. Stopped by Ctrl-C or otherwise, the same
    command goes on from the last checkpoint. Models that are there already are not trained again;
    report.html and metrics.json are those of the last comparison in the folder.
    """
    if ablation and positions is not None:
        raise ValueError("--ablation: has positions of its own; leave --positions out")
    folder, settings = options.folder, options.settings()
    from ..translation.positions import ABLATION, CLIPPED, CLIPPED_NAMES, NAMES

    comparison = options.comparison(
        positions,
        known=NAMES,
        seeds=seeds,
        compared=ABLATION if ablation else settings.compared,
        numbered=(CLIPPED, CLIPPED_NAMES),
    )
    options.check_data()
    from ..translation.compare import REPORT, check_comparison
    from ..translation.compare import compare as run_comparison

    devices, showcase = options.where(), options.showcase()
    check_comparison(settings, comparison, showcase, folder=folder, devices=devices)
    source = options.read(settings)
    results = run_comparison(
        settings,
        comparison,
        source,
        showcase,
        folder=folder,
        devices=devices,
        say=say,
    )
    if results is not None:
        print_rows("held out, nats per target token", results.held_out)
        if results.translations is not None:
            print_rows("held out, BLEU", results.translations.mean, digits=2)
        typer.echo(f"report: {folder / REPORT}")


@translation.command()
@with_training_options(TranslationOptions)
def train(
    *,
    position: Annotated[
        str,
        typer.Option(
            help="How the model knows where a token is: a scheme (sinusoidal, absolute, shaw, "
            "huang, t5, rotary, ...), or Shaw's with its clipping distance and tables: shaw-16, "
            "shaw-16-keys, shaw-16-values.",
        ),
    ],
    options: TranslationOptions,
) -> None:
    """Train one model and print its nats per target token on the validation pairs.

    Writes model.safetensors, model.json, last.ckpt (to go on from) and logs (CSV, TensorBoard)
    in RUNS/NAME/POSITION. `relpos translation evaluate` measures it on the held-out pairs.
    """
    from ..translation.positions import position_options

    try:
        position_options(position)
    except ValueError as error:
        raise ValueError(f"--{error}") from None
    folder, settings = options.folder / position, options.settings()
    options.check_data()
    from ..translation.train import check_training, train_position

    devices = options.where()
    check_training(position, settings, folder=folder, devices=devices)
    source = options.read(settings)
    say(f"{source.name}: {source.split}")
    trained = train_position(position, settings, source, folder=folder, devices=devices)
    if not in_first_process():
        return
    for step, nats in trained.curves["valid"][-1:]:
        typer.echo(f"validation: {nats:.4f} nats per target token at step {step}")
    typer.echo(f"checkpoint: {folder}")


@translation.command()
def evaluate(
    checkpoint: TranslationCheckpoint,
    data: PairsOption = None,
    source: SourceOption = None,
    target: TargetOption = None,
    beam: BeamOption = None,
    alpha: AlphaOption = None,
    valid: ValidOption = False,
) -> None:
    """Print a model's nats per target token on the held-out pairs; of text BLEU and chrF too.

    The pairs must be those that the model was trained beside: give --data again.
    """
    from ..translation.evaluate import evaluate_chorales, evaluate_text
    from ..translation.kinds import CHORALES
    from ..translation.model import load_translation

    trained, part = load_translation(checkpoint), "validation" if valid else "held out"
    if trained.kind == CHORALES:
        of_text = {
            "--data": data, "--source": source, "--target": target,
            "--beam": beam, "--alpha": alpha,
        }  # fmt: skip
        for option, given in of_text.items():
            if given is not None:
                raise ValueError(f"{option}: leave it out; {checkpoint} is a model of chorales")
        nats = evaluate_chorales(trained, path=checkpoint, valid=valid)
        print_rows(f"{part}, nats per target token", {trained.position: nats})
        return
    say(f"measuring on the {'validation' if valid else 'held-out'} pairs")
    beam, alpha = trained.search(beam, alpha)
    nats, scores = evaluate_text(
        trained,
        data,
        source=source,
        target=target,
        beam=beam,
        alpha=alpha,
        path=checkpoint,
        valid=valid,
    )
    print_rows(f"{part}, nats per target token", {trained.position: nats})
    typer.echo(
        f"BLEU {scores.bleu} on {scores.sentences:,} sentences with beam {beam} and alpha "
        f"{alpha:g}, {scores.signatures['bleu']}"
    )
    typer.echo(f"chrF {scores.chrf:.1f}, {scores.signatures['chrf']}")


@translation.command()
def translate(
    checkpoint: TranslationCheckpoint,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sentences, each in quotes; without them they are read from --file or from "
            "standard input, one on a line.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A text file with a sentence a line.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A file for the translations, in place of standard output.")
    ] = None,
    beam: BeamOption = None,
    alpha: AlphaOption = None,
) -> None:
    """Translate sentences of yours: a line out for each line in."""
    if text and file is not None:
        raise ValueError("--file: must not come with sentences on the command line")
    from ..files import check_writable, read_whole, write_text
    from ..progress import show_progress
    from ..translation.model import load_translation
    from ..translation.texts import read_lines
    from ..translation.translate import translate as run_translation

    if out is not None:
        check_not_read(file, [out])
        check_writable(out)
    trained = load_translation(checkpoint)
    subwords = trained.of_text()
    beam, alpha = trained.search(beam, alpha)
    if text:
        lines = text
    elif file is not None:
        lines = read_lines(read_whole(file), str(file))
    elif sys.stdin is None:
        raise ValueError("standard input: must hold sentences, got none, it is closed")
    else:
        if sys.stdin.isatty():
            say(f"{' to '.join(trained.languages)}: a sentence a line, Ctrl-D at the end")
        lines = read_lines(sys.stdin.buffer.read(), "standard input")
    with show_progress("translating", len(lines), "lines") as progress:
        found = run_translation(
            trained.model, subwords, lines, beam=beam, alpha=alpha, progress=progress
        )
    if out is None:
        for line in found:
            typer.echo(line)
    else:
        write_text(out, "".join(f"{line}\n" for line in found))
        typer.echo(f"wrote {out}")


@translation.command()
def harmonise(
    checkpoint: TranslationCheckpoint,
    melody: Annotated[Path, typer.Argument(help="A tune, .mid or .musicxml.", show_default=False)],
    beam: BeamOption = None,
    out: Annotated[
        Path,
        typer.Option(help="The files' name without ending: .mid, .musicxml and .wav are added."),
    ] = Path("harmony"),
) -> None:
    """Put alto, tenor and bass below a melody, with a model trained with --chorales."""
    from ..music.export import chorale_stem, write_chorale
    from ..music.generate import check_melody
    from ..music.melody import read_melody
    from ..music.stems import PIECE_ENDINGS, files_of
    from ..progress import show_progress
    from ..translation.harmonise import harmonise as run_harmonise
    from ..translation.model import load_translation

    stem = chorale_stem(out)
    check_not_read(melody, files_of(stem, PIECE_ENDINGS))
    trained = load_translation(checkpoint)
    vocabulary, window = trained.of_chorales()
    beam, _ = trained.search(beam, None)
    tune = read_melody(melody, lowest=vocabulary.lowest, highest=vocabulary.highest)
    check_melody(f"{melody}: the melody", tune)
    say_unsung(str(melody), tune.unsung)
    with show_progress("harmonising", len(tune.pitches), "sixteenths") as progress:
        piece = run_harmonise(
            trained.model, vocabulary, tune, window=window, beam=beam, name=melody.stem,
            progress=progress,
        )  # fmt: skip
        write_chorale(stem, piece)
    typer.echo(f"wrote {stem}.mid, {stem}.musicxml and {stem}.wav ({piece.steps / 4:g} quarters)")
