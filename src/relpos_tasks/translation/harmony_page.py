"""The page on a comparison of models that harmonise, made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..music.chorale_blocks import chorale_blocks
from ..report.blocks import Block, FactsBlock, ListBlock, Report, Section, TextBlock
from ..report.wording import seeds_note
from .chorales import ChoraleSource
from .harmony_wording import protocol, summary, verdict
from .page_parts import cost_blocks, curves_block, learned_blocks, worth_table
from .positions import is_relative, title_of
from .results import ComparisonResults
from .settings import ChoraleSettings

__all__ = ["Harmony", "harmony_report"]


@dataclass(frozen=True)
class Harmony:
    """A held-out soprano with new voices below it.

    Args:
        piece: the name of the chorale that the soprano is from.
        position: of the model that harmonised it.
        files: of the chorale, as `chorale_contents` gives them, in the folder of the run.
    """

    piece: str
    position: str
    files: Mapping[Path, bytes]


def harmony_report(
    settings: ChoraleSettings,
    source: ChoraleSource,
    results: ComparisonResults,
    harmony: Harmony,
) -> Report:
    """The report.

    Args:
        settings: sizes and budget.
        source: the chorales.
        results: the numbers.
        harmony: what one of the models made.

    Raises:
        ValueError: if the score cannot be engraved.
    """
    ranked = sorted(results.mean, key=results.mean.__getitem__)
    curves = curves_block(
        results, ranked, trained="training batches, transposed at random", watched="pieces"
    )
    return Report(
        title="Bach's sopranos harmonised: relative and absolute positions",
        summary=summary(settings, source, results),
        verdict=verdict(results.mean, results.seeds),
        good=is_relative(ranked[0]),
        sections=[
            Section("held-out", "Held-out pieces", _held_out(results, ranked)),
            Section(
                "harmony",
                "A soprano harmonised",
                _harmony(settings, harmony),
                harmony.files,
            ),
            Section("curves", "Learning", [curves]),
            Section("rows", "What the rows learned", learned_blocks(results, ranked)),
            Section("cost", "What it costs", cost_blocks(results)),
            Section(
                "protocol",
                "How it was measured",
                [ListBlock(protocol(settings, source)), FactsBlock(results.machine)],
            ),
        ],
        template="music/report.html",
    )


def _held_out(results: ComparisonResults, ranked: list[str]) -> list[Block]:
    most = max(results.mean.values())
    return [
        TextBlock(
            "Nats per token of the three lower voices on pieces that no model was trained on; "
            f"lower is better. {seeds_note(len(results.seeds))}"
        ),
        worth_table(
            results,
            ranked,
            measured={},
            bars={name: nats / most for name, nats in results.mean.items()},
        ),
    ]


def _harmony(settings: ChoraleSettings, harmony: Harmony) -> list[Block]:
    note = (
        f"The soprano of {harmony.piece}, the first of the held-out pieces, with an alto, a tenor "
        "and a bass by the model that was best on the validation pieces "
        f"({title_of(harmony.position)}), by a beam search over {settings.beam} hypotheses in "
        f"windows of {settings.window} tokens. Nothing was chosen among several tries."
    )
    return [TextBlock(note), *chorale_blocks(harmony.files)]
