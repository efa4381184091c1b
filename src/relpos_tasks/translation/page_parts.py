"""What the pages on sentences and on chorales share: tables, curves, the rows that were learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from torch import nn

from ..report.blocks import Block, FigureBlock, TableBlock, TableRow, TextBlock
from ..report.colors import BASELINE, series_colors
from ..report.figures import curves_figure
from ..report.learned import learned_rows
from ..report.wording import busy_note, count, duration
from ..training.comparison import mean_and_spread
from .positions import is_relative, title_of
from .results import ComparisonResults

__all__ = [
    "NATS",
    "TRAINED_ONCE",
    "cost_blocks",
    "curves_block",
    "first_seed",
    "learned_blocks",
    "not_all",
    "relative_of",
    "shown",
    "worth_table",
]

NATS = "nats per target token"
TRAINED_ONCE = "Each was trained once: how much another seed changes was not measured."
# As many as there are colours.
_MOST_SHOWN = 6


def relative_of(ranked: Sequence[str]) -> list[str]:
    """The relative ones of some positions, in their order.

    Args:
        ranked: positions, the best first.
    """
    return [name for name in ranked if is_relative(name)]


def shown(results: ComparisonResults, ranked: Sequence[str]) -> list[str]:
    """The positions that figures show: six at most.

    Of more than six the baseline, the best relative one, and those that are not relative.

    Args:
        results: the numbers; the first position is the baseline.
        ranked: its positions, the best first.
    """
    names = list(results.trained)
    if len(names) <= _MOST_SHOWN:
        return names
    absolute = [name for name in names if not is_relative(name)]
    chosen = list(dict.fromkeys([names[0], *relative_of(ranked)[:1], *absolute]))[:_MOST_SHOWN]
    return [name for name in names if name in chosen]


def worth_table(
    results: ComparisonResults,
    ranked: Sequence[str],
    *,
    measured: Mapping[str, Mapping[str, str]],
    bars: Mapping[str, float],
) -> TableBlock:
    """What the models are worth on what was held out.

    Args:
        results: the numbers.
        ranked: its positions, the best first.
        measured: what was measured beside nats: by the heading of its column, and by position.
        bars: by position, their lengths in 0..1.
    """
    colors = series_colors(shown(results, ranked))
    return TableBlock(
        ["positions", *measured, NATS],
        [
            TableRow(
                [
                    title_of(name),
                    *(column[name] for column in measured.values()),
                    mean_and_spread(nats),
                ],
                bar=bars[name],
                color=colors.get(name, BASELINE),
                strong=name == ranked[0],
            )
            for name, nats in results.held_out.items()
        ],
    )


def cost_blocks(results: ComparisonResults) -> list[Block]:
    """Parameters, speed and time of each scheme, the speed beside that of the first one.

    Args:
        results: the numbers.
    """
    speed = {
        name: fmean(one.steps_per_second for one in of_seeds)
        for name, of_seeds in results.trained.items()
    }
    baseline = next(iter(speed))
    rows = []
    for name, of_seeds in results.trained.items():
        busy = " *" if any(one.time.crowded for one in of_seeds) else ""
        rows.append(
            TableRow(
                [
                    title_of(name),
                    count(of_seeds[0].parameters),
                    f"{speed[name]:.2f}{busy}",
                    f"{100 * speed[name] / speed[baseline]:.0f} %{busy}",
                    duration(fmean(one.time.seconds for one in of_seeds)) + busy,
                ]
            )
        )
    times = {
        title_of(name): [one.time for one in of_seeds] for name, of_seeds in results.trained.items()
    }
    columns = ["positions", "parameters", "steps per second", "speed", "training"]
    again = "" if len(results.seeds) == 1 else f" Means over {len(results.seeds)} seeds."
    return [
        TextBlock(
            f"All models had {count(results.steps)} steps. Times are of training with all that "
            "belongs to it, such as validation and checkpoints; speed is in steps per second, "
            f"beside that of {title_of(baseline)}.{again} Shaw et al. (2018, section 3.3, from "
            "memory) report 7 % fewer steps per second than with sinusoids."
        ),
        TableBlock(columns, rows, note=busy_note(times)),
    ]


def curves_block(
    results: ComparisonResults, ranked: Sequence[str], *, trained: str, watched: str
) -> FigureBlock:
    """The learning curves of the first seed.

    Args:
        results: the numbers.
        ranked: its positions, the best first.
        trained: on what the curves of training are measured, such as `"training batches"`.
        watched: on what those of validation are, in the plural.
    """
    dropout = next(iter(results.trained.values()))[0].model.config.dropout
    changed = ", with dropout" if dropout else ""
    curves = {title_of(name): results.trained[name][0].curves for name in shown(results, ranked)}
    return FigureBlock(
        curves_figure(curves, None, ylabel=NATS),
        "Learning curves",
        f"Thin lines: {trained}{changed}. Thick lines: the validation {watched}. Both "
        f"without label smoothing.{first_seed(results)}{not_all(results, ranked)}",
    )


def first_seed(results: ComparisonResults) -> str:
    """Says that one of several seeds is shown; "" where there is one.

    Args:
        results: the numbers.
    """
    return "" if len(results.seeds) == 1 else f" Shown is the first of {len(results.seeds)} seeds."


def not_all(results: ComparisonResults, ranked: Sequence[str]) -> str:
    """Says that `shown` left positions out; "" where it did not.

    Args:
        results: the numbers.
        ranked: its positions, the best first.
    """
    names = shown(results, ranked)
    if len(names) == len(results.trained):
        return ""
    return (
        f" Of {len(results.trained)} schemes {len(names)} are shown: the first, the best relative "
        "one, and those that are not relative."
    )


def learned_blocks(results: ComparisonResults, ranked: Sequence[str]) -> list[Block]:
    """The rows of the best relative scheme that has any, and those of absolute positions.

    Args:
        results: the numbers.
        ranked: its positions, the best first.
    """
    relative = (_rows_of_both_sides(results, name) for name in relative_of(ranked))
    learned: list[Block] = [*next(filter(None, relative), ())]
    if "absolute" in results.trained:
        learned += _rows_of_both_sides(results, "absolute")
    return learned or [TextBlock("None of these schemes has rows that are learned.")]


def _rows_of_both_sides(results: ComparisonResults, name: str) -> list[FigureBlock]:
    model = results.trained[name][0].model
    sides = {
        "encoder": (model.source_position, model.encoder),
        "decoder": (model.target_position, model.decoder),
    }
    return [
        block
        for side, parts in sides.items()
        for block in learned_rows(
            nn.ModuleList(part for part in parts if part is not None),
            f"{title_of(name)}, {side}",
            look_for="Offsets beyond the farthest row share it.",
        )
    ]
