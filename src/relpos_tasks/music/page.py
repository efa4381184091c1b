"""The report on a comparison, made from its numbers."""

from __future__ import annotations

from relpos.plots import cosine_figure, norms_figure, table_rows
from relpos.plots.style import svg

from ..report.blocks import (
    Block,
    DownloadBlock,
    FactsBlock,
    FigureBlock,
    ListBlock,
    Report,
    Section,
    TableBlock,
    TableRow,
    TextBlock,
)
from ..report.colors import BASELINE, series_colors
from ..report.figures import curves_figure, lengths_figure
from ..report.wording import count, duration
from .blocks import PlayerBlock, ScoreBlock
from .piece import Piece
from .results import ComparisonResults
from .score import svg_pages
from .settings import MusicSettings
from .source import Source
from .wording import (
    LONG_NAMES,
    SHORT_NAMES,
    busy_note,
    chorale_note,
    curves_note,
    lengths_note,
    protocol,
    summary,
    verdict,
)

__all__ = ["comparison_report"]

# As high as verovio lets a page be.
_ONE_PAGE = 60_000
_UNIT = "nats per token"


def comparison_report(
    settings: MusicSettings,
    source: Source,
    results: ComparisonResults,
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
    relative, absolute = results.held_out["huang"], results.held_out["absolute"]
    download = DownloadBlock("Download MIDI", "chorale.mid", midi, "audio/midi")
    return Report(
        title="Bach chorales with relative and with absolute positions",
        summary=summary(settings, source),
        verdict=verdict(relative, absolute, results.counting),
        good=relative < min(absolute, *results.counting.values()),
        sections=[
            Section("held-out", "Held-out pieces", _held_out(results)),
            Section(
                "chorale",
                "A new chorale",
                [
                    TextBlock(chorale_note(chorale, settings)),
                    PlayerBlock(wav, download),
                    ScoreBlock(
                        svg_pages(musicxml, width=2400, height=_ONE_PAGE),
                        svg_pages(musicxml, width=1000, height=_ONE_PAGE),
                    ),
                ],
            ),
            Section("lengths", "Longer than in training", _lengths(settings, source, results)),
            Section("curves", "Learning", [_curves(settings, results)]),
            Section("rows", "What the rows learned", _learned(results)),
            Section(
                "protocol",
                "How it was measured",
                [ListBlock(protocol(settings, source)), FactsBlock(results.machine)],
            ),
        ],
        template="music/report.html",
    )


def _held_out(results: ComparisonResults) -> list[Block]:
    worst = max(*results.held_out.values(), *results.counting.values())
    colors = series_colors(results.trained)
    models = [
        TableRow(
            [
                LONG_NAMES[name],
                f"{(nats := results.held_out[name]):.3f}",
                count(one.parameters),
                count(results.steps),
                duration(one.time.seconds) + (" *" if one.time.crowded else ""),
            ],
            bar=nats / worst,
            color=colors[name],
            strong=name == "huang",
        )
        for name, one in results.trained.items()
    ]
    counting = [
        TableRow(
            [f"counting: {name}", f"{nats:.3f}", None, None, None],
            bar=nats / worst,
            color=BASELINE,
        )
        for name, nats in results.counting.items()
    ]
    return [
        TextBlock("Nats per token on pieces that no model was trained on; lower is better."),
        TableBlock(
            ["model", _UNIT, "parameters", "steps", "training"],
            models + counting,
            note=busy_note(results),
        ),
    ]


def _lengths(settings: MusicSettings, source: Source, results: ComparisonResults) -> list[Block]:
    """The length test; only the note on why there is none where no piece is long enough."""
    note = TextBlock(lengths_note(settings, source, results))
    if not results.long_pieces:
        return [note]
    windows = sorted(next(iter(results.lengths.values())))
    rows = [
        TableRow([SHORT_NAMES[name], *(f"{nats[window]:.3f}" for window in windows)])
        for name, nats in results.lengths.items()
    ]
    figure = FigureBlock(
        lengths_figure(
            {SHORT_NAMES[name]: nats for name, nats in results.lengths.items()},
            xlabel="tokens in a window (trained at the first)",
            ylabel=_UNIT,
        ),
        "Nats per token over the length of the window",
        "Lower is better; a flat line does not suffer from lengths that it was not trained on.",
    )
    return [
        note,
        TableBlock(["model", *(f"{count(window)} tokens" for window in windows)], rows),
        figure,
    ]


def _curves(settings: MusicSettings, results: ComparisonResults) -> FigureBlock:
    name, nats = min(results.counting.items(), key=lambda item: item[1])
    return FigureBlock(
        curves_figure(
            {SHORT_NAMES[name]: one.curves for name, one in results.trained.items()},
            (f"counting: {name}", nats),
            ylabel=_UNIT,
        ),
        "Learning curves",
        curves_note(settings, name),
    )


def _learned(results: ComparisonResults) -> list[FigureBlock]:
    rows, first, relative = table_rows(results.trained["huang"].model)
    absolute, start, _ = table_rows(results.trained["absolute"].model)
    return [
        FigureBlock(
            svg(cosine_figure(rows, first, relative=relative)),
            "Relative rows: cosine similarity",
            "Cosine similarity between the relative rows of any two offsets, layer by layer, as in "
            "Wang and Chen (2020). The same voice comes back every four tokens, "
            "the same place in the beat every sixteen; rows far back were trained less often.",
        ),
        FigureBlock(
            svg(norms_figure(rows, first, relative=relative)),
            "Relative rows: length over the offset",
            "How long each relative row is: what a token looks for by distance alone. Every row "
            "began with length 1 on average.",
        ),
        FigureBlock(
            svg(cosine_figure(absolute, start, relative=False)),
            "Absolute rows: cosine similarity",
            "The same for the rows of the absolute model, one for each position in the window.",
            small=True,
        ),
    ]
