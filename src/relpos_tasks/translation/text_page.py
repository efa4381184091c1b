"""The page on a comparison of translators, made from its numbers."""

from __future__ import annotations

from statistics import fmean, stdev

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
from ..report.wording import seeds_note
from ..training.comparison import mean_and_spread
from .ablation import ablation_blocks, bleu_of
from .figures import bleu_by_length_figure
from .page_parts import (
    cost_blocks,
    curves_block,
    first_seed,
    learned_blocks,
    not_all,
    shown,
    worth_table,
)
from .positions import title_of
from .results import ComparisonResults, Translations
from .scores import Buckets, Difference
from .sentence_blocks import attention_blocks, samples_blocks
from .settings import TextSettings
from .source import Source
from .text_wording import (
    LITERATURE,
    differences_note,
    differences_said,
    is_good,
    lengths_note,
    long_note,
    protocol,
    summary,
    verdict,
)

__all__ = ["text_report"]


def text_report(settings: TextSettings, source: Source, results: ComparisonResults) -> Report:
    """The report.

    Args:
        settings: sizes and budget.
        source: the pairs.
        results: the numbers, the translations of the held-out sentences among them.

    Raises:
        ValueError: if there are no translations.
    """
    found = results.translations
    if found is None:
        raise ValueError("text_report: results must have translations, got none")
    long, trained_on = found.beyond, source.trained_on(settings)
    ranked = sorted(found.mean, key=found.mean.__getitem__, reverse=True)
    sections = [
        Section("held-out", "Held-out sentences", _held_out(results, found, ranked)),
        Section("differences", "What differs", _differences(results, found)),
        Section("lengths", "By length", _lengths(settings, results, found, ranked, long)),
        Section("ablation", "How far, and which tables", ablation_blocks(found)),
        Section("samples", "Translations", samples_blocks(results, found, ranked)),
        Section(
            "curves",
            "Learning",
            [curves_block(results, ranked, trained="training batches", watched="pairs")],
        ),
        Section("attention", "Where words look", attention_blocks(source, results, found, ranked)),
        Section("rows", "What the rows learned", learned_blocks(results, ranked)),
        Section("cost", "What it costs", cost_blocks(results)),
        Section("literature", "What is known", [ListBlock(LITERATURE)]),
        Section(
            "protocol",
            "How it was measured",
            [
                ListBlock(protocol(settings, source, results, trained_on)),
                FactsBlock(results.machine),
            ],
        ),
    ]
    return Report(
        title=f"Translation from {' to '.join(source.languages)}: relative and absolute positions",
        summary=summary(settings, source, results, trained_on),
        verdict=verdict(found, long),
        good=is_good(found, long),
        sections=[section for section in sections if section.blocks],
        template="translation/report.html",
    )


def _held_out(results: ComparisonResults, found: Translations, ranked: list[str]) -> list[Block]:
    # All may be 0 where training was short.
    most = max(found.mean.values()) or 1.0
    seeds = len(results.seeds)
    spread = "BLEU with its interval of 95 %." if seeds == 1 else seeds_note(seeds)
    measured = {
        "BLEU": {name: bleu_of(found, name) for name in ranked},
        "chrF": {
            name: mean_and_spread([one.chrf for one in found.scores[name]], digits=1)
            for name in ranked
        },
    }
    bars = {name: bleu / most for name, bleu in found.mean.items()}
    first = found.scores[found.baseline][0]
    return [
        TextBlock(
            f"The translations of {first.sentences:,} sentences by each model; higher BLEU and "
            f"chrF and fewer nats are better. {spread}"
        ),
        worth_table(results, ranked, measured=measured, bars=bars),
        FactsBlock({f"sacrebleu's {name}": text for name, text in first.signatures.items()}),
    ]


def _differences(results: ComparisonResults, found: Translations) -> list[Block]:
    if not found.differences:
        return []
    return [
        TextBlock(differences_note(results, found.differences)),
        _differences_table(found),
        ListBlock(differences_said(found)),
    ]


def _differences_table(found: Translations) -> TableBlock:
    if found.seeds > 1:
        return TableBlock(
            ["positions", f"BLEU less that of {title_of(found.baseline)}", "least to most"],
            [
                TableRow(
                    [
                        title_of(name),
                        f"{fmean(by_seed):+.1f} ± {stdev(by_seed):.1f}",
                        f"{min(by_seed):+.1f} to {max(by_seed):+.1f}",
                    ]
                )
                for name, by_seed in found.difference_by_seed.items()
            ],
        )
    return TableBlock(
        ["positions", f"BLEU less that of {title_of(found.baseline)} (95 %)", "p"],
        [
            TableRow([title_of(name), _signed(one), f"{one.p_value:.3f}"])
            for name, one in found.differences.items()
        ],
    )


def _signed(found: Difference) -> str:
    bleu = found.bleu
    return f"{bleu.value:+.1f} ({bleu.low:+.1f} to {bleu.high:+.1f})"


def _lengths(
    settings: TextSettings,
    results: ComparisonResults,
    found: Translations,
    ranked: list[str],
    long: Translations | None,
) -> list[Block]:
    first = found.by_length[0]
    drawn = Buckets(
        first.names,
        first.sentences,
        {title_of(name): first.bleu[name] for name in shown(results, ranked)},
    )
    means = [
        TableRow(
            [
                title_of(name),
                *(
                    f"{fmean(one.bleu[name][n].value for one in found.by_length):.1f}"
                    for n in range(len(first.names))
                ),
            ]
        )
        for name in results.trained
    ]
    again = "" if len(results.seeds) == 1 else f"Means over {len(results.seeds)} seeds."
    blocks: list[Block] = [
        TextBlock(lengths_note(settings, results)),
        FigureBlock(
            bleu_by_length_figure(drawn, xlabel="words of the reference"),
            "BLEU by sentence length",
            f"With intervals of 95 %.{first_seed(results)}{not_all(results, ranked)}",
        ),
        TableBlock(["BLEU by words", *first.names], means, note=again),
    ]
    if long is not None:
        scores = [TableRow([title_of(name), bleu_of(long, name)]) for name in results.trained]
        blocks += [
            TextBlock(long_note(found, long)),
            TableBlock(["positions", "BLEU"], scores),
            _differences_table(long),
        ]
    return blocks
