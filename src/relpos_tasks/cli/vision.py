"""`relpos vision`: train, measure and try pixel classifiers on canvases of digits.

Whatever is slow to import is imported inside the command that needs it.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import ValidOption, VisionCheckpoint, check_not_read, picture_file
from .output import in_first_process, print_rows, say
from .training_options import PositionsOption, SeedsOption, with_training_options
from .vision_options import VisionOptions

__all__ = ["vision"]

vision = typer.Typer(
    help="Train on canvases of digits with positions in two dimensions, compare, measure, and read "
    "pictures.",
    epilog="Begin with `relpos vision compare --preset tiny` (half a minute) or `relpos vision "
    "compare`.",
)


class MapPosition(StrEnum):
    """Position schemes of a map; convolution is of the preset botnet alone."""

    none = "none"
    absolute = "absolute"
    absolute_resized = "absolute-resized"
    sinusoidal = "sinusoidal"
    sequence = "sequence"
    sequence_rotary = "sequence-rotary"
    axial_rotary = "axial-rotary"
    grid = "grid"
    grid_resized = "grid-resized"
    grid_concatenated = "grid-concatenated"
    window = "window"
    window_resized = "window-resized"
    continuous = "continuous"
    convolution = "convolution"


@vision.command()
@with_training_options(VisionOptions)
def compare(
    *,
    positions: PositionsOption = None,
    seeds: SeedsOption = 1,
    options: VisionOptions,
) -> None:
    """Train without positions, with absolute and with relative ones (grid), measure, report.

    The preset botnet trains with a convolution, without positions, and with relative ones.
    Writes RUNS/NAME/report.html (a page that needs no network), metrics.json, machine.json, and a
    checkpoint per model (RUNS/NAME/grid, ...). Stopped by Ctrl-C or otherwise, the same command
    goes on from the last checkpoint.
    """
    folder, settings = options.folder, options.settings()
    comparison = options.comparison(
        positions, known=settings.positions, seeds=seeds, compared=settings.compared
    )
    from ..vision.canvas import TESTS
    from ..vision.compare import REPORT, check_comparison
    from ..vision.compare import compare as run_comparison
    from ..vision.digits import read_digits

    devices = options.where()
    check_comparison(settings, comparison, folder=folder, devices=devices)
    results = run_comparison(
        settings, comparison, read_digits(), folder=folder, devices=devices, say=say
    )
    if results is not None:
        for test in TESTS:
            print_rows(
                f"held out, {test}: share of ink pixels labelled rightly",
                {name: results.values(name, test) for name in results.held_out},
            )
        typer.echo(f"report: {folder / REPORT}")


@vision.command()
@with_training_options(VisionOptions)
def train(
    *,
    position: Annotated[MapPosition, typer.Option(help="How the model knows where a pixel is.")],
    options: VisionOptions,
) -> None:
    """Train one model and print its accuracy on canvases of the validation images.

    Writes model.safetensors, model.json, last.ckpt (to go on from) and logs (CSV, TensorBoard)
    in RUNS/NAME/POSITION. `relpos vision evaluate` measures it on the held-out images.
    """
    folder, settings = options.folder / position, options.settings()
    from ..vision.digits import read_digits
    from ..vision.evaluate import accuracy_by_test
    from ..vision.train import check_training, train_position

    devices = options.where()
    check_training(position, settings, folder=folder, devices=devices)
    split = read_digits()
    say(f"digits: {split}")
    trained = train_position(position, settings, split, folder=folder, devices=devices)
    if not in_first_process():
        return
    print_rows(
        f"validation at step {trained.steps}, share of ink pixels labelled rightly",
        accuracy_by_test(trained.model, split.valid, count=settings.watched),
    )
    typer.echo(f"checkpoint: {folder}")


@vision.command()
def evaluate(
    checkpoint: VisionCheckpoint,
    count: Annotated[
        int | None,
        typer.Option(
            "--canvases",
            min=1,
            max=100_000,
            help="Of each test; by default as many as its compare measured on.",
        ),
    ] = None,
    valid: ValidOption = False,
) -> None:
    """Print the share of held-out ink pixels that a model labels rightly, for each test."""
    from ..vision.digits import read_digits
    from ..vision.evaluate import accuracy_by_test
    from ..vision.model import check_digits, load_vision

    trained, split = load_vision(checkpoint), read_digits()
    check_digits(trained, split, checkpoint)
    count = trained.canvases if count is None else count
    say(f"measuring on {count:,} canvases of each test")
    part, digits = ("validation", split.valid) if valid else ("held out", split.held_out)
    print_rows(
        f"{part}, {trained.model.config.position}: share of ink pixels labelled rightly",
        accuracy_by_test(trained.model, digits, count=count),
    )


@vision.command()
def show(
    checkpoint: VisionCheckpoint,
    image: Annotated[
        Path,
        typer.Argument(
            help="A picture of digits, PNG, JPEG or any other that Pillow reads, dark on light or "
            "light on dark.",
            show_default=False,
        ),
    ],
    digit_height: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="How many pixels high its digits are; the picture is scaled so that they are 8, "
            "as those of training were.",
        ),
    ] = 8,
    out: Annotated[
        Path,
        typer.Option(callback=picture_file, help="The labelled picture, .png or .svg."),
    ] = Path("labels.png"),
) -> None:
    """Read the digits of a picture of yours, and write it with the label of each ink pixel."""
    check_not_read(image, [out])
    from relpos.plots import image_bytes

    from ..files import write_bytes
    from ..vision.model import load_vision
    from ..vision.picture import read_picture
    from ..vision.show import read_and_draw

    model = load_vision(checkpoint).model
    picture = read_picture(image, digit_height=digit_height)
    found, figure = read_and_draw(model, picture)
    write_bytes(out, image_bytes(figure, out.suffix))
    typer.echo(f"picture: {picture.words}")
    typer.echo(f"read: {' '.join(str(one.digit) for one in found) or 'nothing'}")
    for one in found:
        typer.echo(
            f"  {one.digit}  rows {one.rows[0]}-{one.rows[1]}, columns {one.columns[0]}-"
            f"{one.columns[1]}: {one.agreeing} of {one.pixels} ink pixels agree"
        )
    typer.echo(f"wrote {out}")
