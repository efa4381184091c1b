"""The page docs/league.md: every position scheme on every task, from the kept runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from .cells import machine_note, markdown_table, mean_over_seeds, ratio_cell
from .league_grounds import GROUNDS, Ground
from .league_guide import guide
from .league_remedies import REMEDIES, remedies_section
from .league_standings import Standings, standings

__all__ = ["league_files", "league_page", "league_runs"]

HEAD = """\
# The league of position schemes

<!-- Written by benchmarks/tables.py from benchmarks/results/league_*.json and steps.json. -->

The same model, data, steps and seeds for every scheme of a task; positions alone differ. The models
are small and trained for minutes: larger ones may rank otherwise.

**How sure.** Figures are means over seeds, with their standard deviation where there are several.
How much a figure changes with the seed is estimated from all schemes with several seeds together
(s, the root mean square of their standard deviations) and taken for those with one seed too. A
difference of less than twice its standard error, `s * sqrt(1 / m + 1 / n)` for means over m and n
seeds, is within the noise; a difference of BLEU also where the two intervals overlap (the middle
95 % when sentences are drawn anew; of the first seed). Tables are sorted by the first figure, but
what is within the noise has no order: **bold** are the best and all within the noise of it.

A step is a whole one: forward, backward, clipping, optimiser. Its price is the time as a multiple
of a step without positions in the same round (median, 20th to 80th percentile); memory is what
model, gradients, optimiser and activations add to a fresh process at most, in MiB.
"""

NO_STEPS = "What steps cost is not measured yet: `python -m benchmarks.steps`."
NOT_MEASURED = "not measured yet"


def league_runs(task: str) -> list[str]:
    """The files of a task: all schemes, and those trained with several seeds.

    Args:
        task: a name in `GROUNDS`.
    """
    return [f"league_{task}.json", f"league_{task}_seeds.json"]


def league_files() -> list[str]:
    """Every file that the page reads, but for that of the steps' price."""
    return [*(file for task in GROUNDS for file in league_runs(task)), REMEDIES]


def league_page(runs: Mapping[str, Mapping], steps: Mapping | None) -> str:
    """The whole page.

    Args:
        runs: what was kept, by the name of the file.
        steps: the result of `benchmarks.steps`; None where there is none yet.

    Raises:
        ValueError: if a run cannot stand on the page.
    """
    found = {}
    for task in GROUNDS:
        kept = {file: runs[file] for file in league_runs(task) if file in runs}
        if (one := standings(task, kept)) is not None:
            found[task] = one
    rows = [] if steps is None else steps["steps"]
    parts = [HEAD, _price_note(steps), "## Which scheme when", guide(found, rows)]
    for task, ground in GROUNDS.items():
        parts += [f"## {ground.title}", ground.about]
        parts += _section(found[task], rows) if task in found else [_not_measured(ground)]
        if task == "music" and task in found and REMEDIES in runs:
            parts += _remedies(found[task], runs[REMEDIES])
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _price_note(steps: Mapping | None) -> str:
    if steps is None:
        return NO_STEPS
    batches = "; ".join(f"{task}: {batch}" for task, batch in steps["batches"].items())
    return f"Steps were timed on {machine_note(steps['machine'])}. A batch has, in {batches}."


def _not_measured(ground: Ground) -> str:
    return (
        f"Not measured yet: `{ground.command}`, then `python -m benchmarks.keep_run "
        f"runs/league_{ground.task}` and `python -m benchmarks.tables`."
    )


def _section(one: Standings, steps: list[Mapping]) -> list[str]:
    return [markdown_table(_head(one), _rows(one, steps), 1), _note(one)]


def _remedies(music: Standings, run: Mapping) -> list[str]:
    mended = standings("music", {REMEDIES: run})
    assert mended is not None
    title = "### Beyond the length of training"
    return [title, remedies_section(music, mended, run["settings"])]


def _head(one: Standings) -> list[str]:
    return ["scheme", *one.figures, "parameters", "step", "memory, MiB"]


def _rows(one: Standings, steps: list[Mapping]) -> list[list[str]]:
    costs = {row["scheme"]: row for row in steps if row["task"] == one.ground.task}
    # Where the noise is not known nothing is told apart.
    tied = one.tied_with_best(one.first)
    marked = [] if tied is None else [one.ranked[0], *tied]
    rows = []
    for name in one.ranked:
        figures = [_figure(one, column, name) for column in one.figures]
        if name in marked:
            figures[0] = f"**{figures[0]}**"
        cost = costs.get(name)
        price = NOT_MEASURED if cost is None else ratio_cell(cost["ratio"])
        mib = None if cost is None else cost["growth_mib"]
        memory = NOT_MEASURED if mib is None else f"{mib:.0f}"
        rows.append(
            [f"`{name}`: {one.ground.title_of(name)}", *figures,
             f"{one.parameters[name]:,}", price, memory]
        )  # fmt: skip
    return rows


def _figure(one: Standings, column: str, name: str) -> str:
    values = one.figures[column].get(name)
    if not values:
        return NOT_MEASURED
    if column != one.first:
        return mean_over_seeds(values)
    cell = mean_over_seeds(values, one.ground.digits)
    if name in one.intervals:
        low, high = (f"{end:.{one.ground.digits}f}" for end in one.intervals[name])
        cell += f" ({low} to {high})"
    return cell


def _note(one: Standings) -> str:
    counts = Counter(one.seeds(name) for name in one.ranked)
    seeds = ", ".join(
        f"{schemes} scheme{'s' * (schemes > 1)} with {count} seed{'s' * (count > 1)}"
        for count, schemes in sorted(counts.items(), reverse=True)
    )
    spread = one.spread(one.first)
    noise = (
        "How much a figure changes with the seed is not known, so that close ones are in no order."
        if spread is None
        else f"s is {spread:.2g}."
    )
    return f"{one.steps:,} steps each; {seeds}. {noise}"
