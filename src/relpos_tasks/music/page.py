"""What the report on a comparison says, generated from its numbers."""

from __future__ import annotations

from relpos.plots import cosine_figure, norms_figure, table_rows
from relpos.plots.style import svg

from ..report.figures import curves_figure, lengths_figure
from ..report.page import Chart, Report, Row, verdict
from .piece import Piece
from .results import Results
from .score import svg_pages
from .settings import MusicSettings
from .source import EMBEDDED, Source

__all__ = ["page"]

# As high as verovio lets a page be.
_ONE_PAGE = 60_000
_NAMES = {
    "huang": "relative (Huang et al. 2018)",
    "absolute": "absolute (learned)",
}


def page(
    settings: MusicSettings,
    source: Source,
    results: Results,
    chorale: Piece,
    musicxml: str,
    midi: bytes,
    wav: bytes,
) -> Report:
    """The report.

    Args:
        settings: sizes and budget.
        source: the pieces.
        results: the numbers.
        chorale: the generated piece.
        musicxml: of it.
        midi: of it.
        wav: of it.
    """
    steps = settings.training.steps
    best = min(results.counting.items(), key=lambda item: item[1])
    lengths_note, lengths_chart = _lengths(settings, source, results)
    return Report(
        title="Bach chorales with relative and with absolute positions",
        summary=_summary(settings, source),
        good=results.held_out["huang"] < min(results.held_out["absolute"], best[1]),
        verdict=verdict(results.held_out["huang"], results.held_out["absolute"], results.counting),
        rows=[
            Row(_NAMES[name], results.held_out[name], one.parameters, steps, one.seconds, name)
            for name, one in results.trained.items()
        ]
        + [Row(f"counting: {name}", nats) for name, nats in results.counting.items()],
        scores=(
            svg_pages(musicxml, width=2400, height=_ONE_PAGE),
            svg_pages(musicxml, width=1000, height=_ONE_PAGE),
        ),
        wav=wav,
        midi=midi,
        chorale=_chorale(chorale, settings),
        lengths={_short(name): nats for name, nats in results.lengths.items()},
        lengths_note=lengths_note,
        lengths_chart=lengths_chart,
        curves=Chart(
            curves_figure(
                {_short(name): one.curves for name, one in results.trained.items()},
                (f"counting: {best[0]}", best[1]),
            ),
            "Learning curves",
            f"Thin lines: training batches, {_disturbed(settings)}. Thick lines: "
            f"the validation pieces. Dashed: the best counting baseline ({best[0]}) on the "
            "held-out pieces.",
        ),
        learned=_learned(results),
        protocol=_protocol(settings, source),
        machine=results.machine,
    )


def _summary(settings: MusicSettings, source: Source) -> str:
    pieces = (
        "the four-part chorales of Bach that ship with music21"
        if source.name == EMBEDDED
        else f"the chorales of {source.name}"
    )
    training = settings.training
    return (
        f"Two decoders of {settings.layers} layers and width {settings.width} learned "
        f"{pieces}, {len(source.split.train)} of them, token by token: one with the learned "
        "relative positions of the Music Transformer, one with learned absolute positions. "
        f"Both had the same {training.steps:,} steps of {training.batch} sequences of "
        f"{settings.window} tokens, in the same order and from the same seed. They were then "
        f"measured on {len(source.split.held_out)} pieces that neither had seen, and the relative "
        "one wrote a chorale of its own."
    )


def _chorale(chorale: Piece, settings: MusicSettings) -> str:
    bars = chorale.steps // chorale.steps_per_bar
    return (
        f"{bars} bars, drawn from the relative model one token at a time, soprano, alto, tenor, "
        f"bass, sixteenth by sixteenth: {4 * chorale.steps:,} tokens from a model trained on "
        f"{settings.window}. Nothing was chosen among several tries."
    )


def _lengths(settings: MusicSettings, source: Source, results: Results) -> tuple[str, Chart | None]:
    """What the length test was made on and showed, and its figure."""
    window, pieces = settings.window, results.long_pieces
    if not pieces:
        return (
            f"No held-out piece has the {4 * window:,} tokens of the longest window, so that the "
            "length test could not be made."
        ), None
    changes = {name: nats[max(nats)] - nats[min(nats)] for name, nats in results.lengths.items()}
    said = [
        f"the {_short(name)} model {'loses' if change > 0 else 'gains'} {abs(change):.3f}"
        for name, change in changes.items()
    ]
    note = (
        f"Both models were trained on {window:,} tokens and read windows of {window:,}, "
        f"{2 * window:,} and {4 * window:,} here, on the same tokens: those of the {pieces} of "
        f"{len(source.split.held_out)} held-out pieces that are as long as the longest window. "
        "Beyond the trained length the relative table repeats the row of its farthest offset, and "
        "the absolute one that of its last position. From the shortest to the longest, "
        f"{' and '.join(said)} nats per token."
    )
    chart = Chart(
        lengths_figure({_short(name): nats for name, nats in results.lengths.items()}),
        "Nats per token over the length of the window",
        "Lower is better; a flat line does not suffer from lengths that it was not trained on.",
    )
    return note, chart


def _learned(results: Results) -> list[Chart]:
    rows, first, relative = table_rows(results.trained["huang"].model)
    absolute, start, _ = table_rows(results.trained["absolute"].model)
    return [
        Chart(
            svg(cosine_figure(rows, first, relative=relative)),
            "Relative rows: cosine similarity",
            "Cosine similarity between the relative rows of any two offsets, layer by layer, as in "
            "Wang and Chen (2020). The same voice comes back every four tokens, "
            "the same place in the beat every sixteen; what is far back was met less often.",
        ),
        Chart(
            svg(norms_figure(rows, first, relative=relative)),
            "Relative rows: length over the offset",
            "How long each relative row is: what a token looks for by distance alone. Every row "
            "began with length 1 on average.",
        ),
        Chart(
            svg(cosine_figure(absolute, start, relative=False)),
            "Absolute rows: cosine similarity",
            "The same for the rows of the absolute model, one for each place in the window.",
            small=True,
        ),
    ]


def _protocol(settings: MusicSettings, source: Source) -> list[str]:
    onsets = (
        "A struck and a held note are different tokens."
        if source.vocabulary.onsets
        else "Pitches only: holds are not marked."
    )
    parts = (
        "pieces with the same music fall into the same part"
        if source.name == EMBEDDED
        else "the file's valid pieces are held out as they are, whether or not its train holds the "
        "same music"
    )
    return [
        "One token per voice and sixteenth, soprano, alto, tenor, bass, then the next sixteenth "
        f"({source.vocabulary.size} tokens in all). {onsets}",
        f"Pieces: {source.split}. The split is by piece and fixed; {parts}, "
        "and nothing was chosen by looking at the held-out ones.",
        f"Every token of every held-out piece is scored once, in windows of {settings.window} "
        f"tokens that slide by {settings.window // 2}; the begin token is not scored.",
        "Training pieces are transposed at random as far as each voice stays in its range.",
        "Counting baselines see the same tokens: each adds to the context of the one above it "
        "(Witten-Bell smoothing).",
    ]


def _disturbed(settings: MusicSettings) -> str:
    return "transposed at random" + (" and with dropout" if settings.dropout else "")


def _short(name: str) -> str:
    return {"huang": "relative"}.get(name, name)
