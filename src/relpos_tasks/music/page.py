"""The report on a comparison, made from its numbers."""

from __future__ import annotations

from statistics import fmean

from ..models.positions import POSITIONS
from ..report.blocks import (
    Block,
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
from ..report.learned import learned_rows
from ..report.wording import busy_note, count, duration, seeds_note
from ..training.comparison import mean_and_spread
from .composer import Words
from .reported import Reported
from .results import ComparisonResults
from .settings import MusicSettings
from .source import MusicSource
from .wording import curves_note, lengths_note, protocol, summary, verdict

__all__ = ["comparison_report"]

_UNIT = "nats per token"


def comparison_report(
    settings: MusicSettings,
    source: MusicSource,
    results: ComparisonResults,
    words: Words,
    new: Section,
) -> Report:
    """The report.

    Args:
        settings: sizes and budget.
        source: the music.
        results: the numbers.
        words: what things are called.
        new: the part on the new piece.
    """
    best = results.best
    return Report(
        title=words.title,
        summary=summary(settings, source, results, words),
        verdict=verdict(results.mean, results.counting),
        good=POSITIONS[best].relative and results.mean[best] < min(results.counting.values()),
        sections=[
            Section("held-out", f"Held-out {words.works}", _held_out(results, words)),
            *([_literature(results, words.reported)] if words.reported else []),
            new,
            Section("lengths", "Longer than in training", _lengths(settings, results, words)),
            Section("curves", "Learning", [_curves(settings, results, words)]),
            Section("rows", "What the rows learned", _learned(results, words)),
            Section(
                "protocol",
                "How it was measured",
                [ListBlock(protocol(settings, words)), FactsBlock(results.machine)],
            ),
        ],
        template="music/report.html",
    )


def _held_out(results: ComparisonResults, words: Words) -> list[Block]:
    worst = max(*results.mean.values(), *results.counting.values())
    colors = series_colors(results.trained)
    models = [
        TableRow(
            [
                POSITIONS[name].title,
                mean_and_spread(results.held_out[name]),
                count(trained[0].parameters),
                count(results.steps),
                duration(fmean(one.time.seconds for one in trained))
                + (" *" if any(one.time.crowded for one in trained) else ""),
            ],
            bar=results.mean[name] / worst,
            color=colors[name],
            strong=name == results.best,
        )
        for name, trained in results.trained.items()
    ]
    counting = [
        TableRow(
            [f"counting: {name}", f"{nats:.3f}", None, None, None],
            bar=nats / worst,
            color=BASELINE,
        )
        for name, nats in results.counting.items()
    ]
    times = {
        POSITIONS[name].title: [one.time for one in trained]
        for name, trained in results.trained.items()
    }
    return [
        TextBlock(
            f"Nats per token on {words.works} that no model was trained on; lower is better. "
            f"{seeds_note(len(results.seeds))}"
        ),
        TableBlock(
            ["model", _UNIT, "parameters", "steps", "training"],
            models + counting,
            note=busy_note(times),
        ),
    ]


def _literature(results: ComparisonResults, reported: Reported) -> Section:
    """Our figures among those of others, the lowest first."""
    ours = {f"here: {POSITIONS[name].title}": name for name in results.mean}
    nats = dict(reported.nats) | {title: results.mean[name] for title, name in ours.items()}
    colors = series_colors(results.mean)
    rows = [
        TableRow(
            [title, mean_and_spread(results.held_out[ours[title]] if title in ours else [value])],
            bar=value / max(nats.values()),
            color=colors[ours[title]] if title in ours else BASELINE,
            strong=title in ours,
        )
        for title, value in sorted(nats.items(), key=lambda item: item[1])
    ]
    return Section(
        "literature",
        "Beside the literature",
        [
            TextBlock(reported.source),
            TableBlock(["model", _UNIT], rows),
            ListBlock(reported.differences),
        ],
    )


def _lengths(settings: MusicSettings, results: ComparisonResults, words: Words) -> list[Block]:
    """The length test; only the note on why there is none where no piece is long enough."""
    note = TextBlock(lengths_note(settings, results, words))
    if not results.long_pieces:
        return [note]
    windows = sorted(next(iter(results.lengths.values()))[0])
    rows = [
        TableRow(
            [
                POSITIONS[name].title,
                *(mean_and_spread([nats[window] for nats in measured]) for window in windows),
            ]
        )
        for name, measured in results.lengths.items()
    ]
    figure = FigureBlock(
        lengths_figure(
            {POSITIONS[name].title: nats for name, nats in results.mean_lengths.items()},
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


def _curves(settings: MusicSettings, results: ComparisonResults, words: Words) -> FigureBlock:
    name, nats = min(results.counting.items(), key=lambda item: item[1])
    return FigureBlock(
        curves_figure(
            {POSITIONS[name].title: models[0].curves for name, models in results.trained.items()},
            (f"counting: {name}", nats),
            ylabel=_UNIT,
        ),
        "Learning curves",
        curves_note(settings, name, words),
    )


def _learned(results: ComparisonResults, words: Words) -> list[Block]:
    blocks: list[Block] = []
    for name, models in results.trained.items():
        title = POSITIONS[name].title
        blocks += learned_rows(models[0].model, title, look_for=words.rows)
    return blocks or [TextBlock("None of these schemes has rows that are learned.")]
