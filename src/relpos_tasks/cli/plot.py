"""`relpos plot`: the shear, ranges of keys, position tables and attention maps as PNG or SVG."""

# ruff: noqa: PLC0415
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..files import check_writable
from ..training.limits import MAX_SEED
from .options import DataOption, MusicCheckpoint, picture_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..models import DecoderLM
    from ..music.piece import Piece

__all__ = ["plots"]

plots = typer.Typer(
    help="Draw the shear step by step, ranges of keys, the tables of a scheme, or where a model of "
    "music looks.",
)


OutOption = Annotated[
    Path | None,
    typer.Option(
        callback=picture_file,
        help="The file, .png or .svg. By default an SVG: in this folder, or beside the checkpoint.",
    ),
]
LayerOption = Annotated[
    int | None, typer.Option(min=1, help="One layer of a checkpoint; all of them by default.")
]


@plots.command()
def shear(
    length: Annotated[int, typer.Option(min=3, max=6, help="Queries and keys in the picture.")] = 4,
    out: OutOption = None,
) -> None:
    """Draw how scores by offset become scores by key, step by step.

    Beside it, why the pad-reshape-slice of Huang et al. (2018) is right under a causal mask only.
    """
    out = out or _writable(Path("shear.svg"))
    from relpos.plots import shear_figure

    _draw(out, lambda: shear_figure(length))


@plots.command()
def ranges(
    length: Annotated[
        int, typer.Option(min=4, max=32, help="Queries and keys in the picture.")
    ] = 12,
    out: OutOption = None,
) -> None:
    """Draw which keys each query sees in a window, in chunks, behind a prefix, without padding."""
    out = out or _writable(Path("ranges.svg"))
    from relpos.plots import ranges_figure

    _draw(out, lambda: ranges_figure(length))


@plots.command()
def tables(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SCHEME|CHECKPOINT",
            help="A position scheme at its initial state (shaw, huang, t5, alibi, ...; any other "
            "word lists them all), or the folder of a model trained on music (./huang where it "
            "has a scheme's name).",
            show_default=False,
        ),
    ],
    length: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Tokens; 48 by default, or as many as a checkpoint was trained on up to that.",
        ),
    ] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, max=64, help="Heads of a scheme, 4 by default.")
    ] = None,
    head_dim: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Width of a head of a scheme; 32.")
    ] = None,
    layer: LayerOption = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_SEED, help="Of a scheme's parameters, of the queries and the keys."
        ),
    ] = 0,
    out: OutOption = None,
) -> None:
    """Draw the rows of position tables, their norms, their similarity, what they add to scores.

    Scores are those of random queries and keys of variance 1. Keys ahead of the query are grey
    where the scheme is causal.
    """
    from relpos.plots.schemes import SCHEMES

    if what in SCHEMES:
        if layer is not None:
            raise ValueError(f"--layer: must be left out for a scheme, got {layer}")
        out = out or _writable(Path(f"{what}-tables.svg"))
        _draw(out, lambda: _scheme(what, length, heads, head_dim, seed))
        return
    if not Path(what).exists() and Path(what).name == what:
        raise ValueError(
            f"plot: {what!r} is neither a checkpoint nor a scheme; schemes are {', '.join(SCHEMES)}"
        )
    for name, value in (("--heads", heads), ("--head-dim", head_dim)):
        if value is not None:
            raise ValueError(f"{name}: must be left out for a checkpoint, got {value}")
    from ..models import DecoderLM
    from ..training.checkpoint import load

    found = load(what, DecoderLM, task="music")
    out = out or _writable(found.folder / "tables.svg")
    _draw(out, lambda: _decoder(what, found.model, length, layer, seed))


@plots.command()
def attention(
    checkpoint: MusicCheckpoint,
    data: DataOption = None,
    piece: Annotated[
        str | None,
        typer.Option(help="The name of a held-out piece, e.g. bwv111.6; the first by default."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=2, max=4096,
            help="How many of its first tokens are read; 128 by default, or what was trained on.",
        ),
    ] = None,
    layer: LayerOption = None,
    out: OutOption = None,
) -> None:  # fmt: skip
    """Draw where each head looks while a model of music reads a held-out piece, and how far.

    The pieces must be those that the model was trained beside: give --data again if it was
    trained with it.
    """
    import torch

    from relpos.plots import attention_figure, decoder_weights

    from ..music.model import load_music, source_of

    trained = load_music(checkpoint)
    layers = _layers(layer, trained.model.config.layers)
    out = out or _writable(trained.folder / "attention.svg")
    source = source_of(trained, data, checkpoint, progress=sys.stderr.isatty())
    chosen = _piece(piece, source.split.held_out)
    read = torch.from_numpy(source.vocabulary.encode(chosen))
    if tokens is not None and tokens > len(read):
        raise ValueError(
            f"--tokens: must be at most the {len(read)} tokens of {chosen.name}, got {tokens}"
        )
    read = read[: tokens or min(128, trained.window)]

    def figure() -> Figure:
        weights = decoder_weights(trained.model, read)[[number - 1 for number in layers]]
        return attention_figure(weights, title=chosen.name, layers=layers)

    _draw(out, figure)


def _scheme(
    name: str, length: int | None, heads: int | None, head_dim: int | None, seed: int
) -> Figure:
    from relpos.plots import Sizes, initial, table_figure

    given = {"length": length, "heads": heads, "head_dim": head_dim}
    sizes = Sizes(**{key: value for key, value in given.items() if value is not None})
    position, causal = initial(name, sizes, seed=seed)
    return table_figure(
        position, length=sizes.length, heads=sizes.heads, head_dim=sizes.head_dim,
        causal=causal, seed=seed,
    )  # fmt: skip


def _decoder(
    what: str, model: DecoderLM, length: int | None, layer: int | None, seed: int
) -> Figure:
    from relpos.plots import Sizes, decoder_positions, table_figure

    config, positions = model.config, decoder_positions(model)
    if not positions:
        raise ValueError(f"{what}: its model has no positions to draw")
    if layer is not None:
        chosen = f"layer {layer}"
        if chosen not in positions:
            layers = [name.removeprefix("layer ") for name in positions if name]
            rule = f"among {', '.join(layers)}" if layers else "left out, no layer has positions"
            raise ValueError(f"--layer: must be {rule}, got {layer}")
        positions = {chosen: positions[chosen]}
    return table_figure(
        positions, length=length or min(Sizes.length, config.max_length), heads=config.heads,
        head_dim=config.head_dim, causal=True, seed=seed,
    )  # fmt: skip


def _layers(layer: int | None, count: int) -> list[int]:
    if layer is not None and layer > count:
        raise ValueError(f"--layer: must be in 1..{count}, got {layer}")
    return list(range(1, count + 1)) if layer is None else [layer]


def _piece(name: str | None, pieces: tuple[Piece, ...]) -> Piece:
    found = next((piece for piece in pieces if name in (None, piece.name)), None)
    if found is None:
        names = [piece.name for piece in pieces]
        more = f", ... ({len(names)} in all)" if len(names) > 5 else ""
        raise ValueError(
            f"--piece: must be a held-out piece ({', '.join(names[:5])}{more}), got {name!r}"
        )
    return found


def _writable(path: Path) -> Path:
    """The path, if a picture can be written there."""
    check_writable(path)
    return path


def _draw(path: Path, draw: Callable[[], Figure]) -> None:
    """Write a picture, and show meanwhile that it is being drawn: large ones take minutes."""
    from relpos.plots import image_bytes

    from ..files import write_bytes
    from ..progress import show_activity

    with show_activity("drawing"):
        content = image_bytes(draw(), path.suffix)
    write_bytes(path, content)
    typer.echo(f"wrote {path}")
