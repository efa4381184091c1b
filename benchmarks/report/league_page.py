"""The page docs/league.md: every position scheme on every task, from the kept runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from relpos_tasks.report.wording import listed
from relpos_tasks.training.comparison import mean_and_spread

from .cells import machine_note, markdown_table, ratio_cell
from .league_ablation import ablation_section
from .league_grounds import GROUNDS, LONG_SENTENCES, Ground, digits_of
from .league_guide import guide
from .league_remedies import REMEDIES, remedies_of, remedies_section
from .league_standings import Standings, standings

__all__ = ["league_files", "league_page"]

HEAD = """\
# The league of position schemes

<!-- Written by benchmarks/tables.py from benchmarks/results/league_*.json and steps.json. -->

The same model, data and steps for every scheme of a table; positions alone differ. Under each table
stand the seeds of its schemes. The models are small and trained for minutes: larger ones may rank
otherwise.

**How sure.** Figures are means over seeds, with their standard deviation; one without it has one
seed. Training again with another seed gives another figure, so schemes with one seed are not told
apart, and tables merely list them by their figure. Of schemes with several seeds the best is
compared with each other one by a paired t-test: the two are subtracted seed by seed (the same seed
means the same data order and the same first numbers), and the mean difference is held against how
much the differences change from seed to seed. It is *more than another seed explains* where seeds
alone would give as large a one in less than 5 % of cases, divided by the number of schemes so
compared (Bonferroni), since the best was picked by the same figures. With three seeds this asks
much: what is not told apart may still differ. **Bold** are the best of the schemes with several
seeds and those that are not told apart from it. Each column is judged for itself. Seeds do not say
what other test pieces, images or sentences would change. For BLEU the brackets do, with the first
seed: the middle 95 % when sentences are drawn anew, and for a difference the same ones for both.
Nor do seeds say what another machine would change: with another number of threads sums are added in
another order, and after some hundred steps the same seed gives another model.
"""

STEPS = """\
A step is a whole one: forward, backward, clipping, optimiser. Its price is the time as a multiple
of a step without positions in the same round (median, 20th to 80th percentile); memory is what
model, gradients, optimiser and activations add to a fresh process at most, in MiB."""
NO_STEPS = "What steps cost is not measured yet: `python -m benchmarks.steps`."
NOT_MEASURED = "not measured yet"


def league_files() -> list[str]:
    """Every file that the page reads, but for that of the steps' price."""
    grounds = (*GROUNDS.values(), LONG_SENTENCES)
    return [*(file for ground in grounds for file in ground.files), REMEDIES]


def league_page(runs: Mapping[str, Mapping], steps: Mapping | None) -> str:
    """The whole page.

    Args:
        runs: what was kept, by the name of the file.
        steps: the result of `benchmarks.steps`; None where there is none yet.

    Raises:
        ValueError: if a run cannot stand on the page.
    """
    found = {
        task: one for task, ground in GROUNDS.items() if (one := _found(ground, runs)) is not None
    }
    long_sentences = _found(LONG_SENTENCES, runs)
    rows = [] if steps is None else steps["steps"]
    parts = [HEAD, _price_note(steps)]
    mended = None
    if "music" in found and REMEDIES in runs:
        mended = standings(found["music"].ground, {REMEDIES: runs[REMEDIES]})
    remedies = [] if mended is None else remedies_of(found["music"], mended)
    parts += ["## Which scheme when", guide(found, long_sentences, rows, remedies)]
    for task, ground in GROUNDS.items():
        parts += [f"## {ground.title}", ground.about]
        # Where no step of a task was timed, there are no columns of their price.
        timed = [row for row in rows if row["task"] == task] or None
        parts += _section(found[task], timed) if task in found else [_not_measured(ground)]
        if task == "music" and mended is not None:
            parts += [
                "### Beyond the length of training",
                remedies_section(found[task], mended),
            ]
        if task == "translation" and task in found and (ablation := ablation_section(found[task])):
            parts += ["### Beside the paper's ablation", ablation]
    parts += [f"### {LONG_SENTENCES.title}", LONG_SENTENCES.about]
    # What a step costs stands in the table above.
    parts += _section(long_sentences) if long_sentences else [_not_measured(LONG_SENTENCES)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _found(ground: Ground, runs: Mapping[str, Mapping]) -> Standings | None:
    return standings(ground, {file: runs[file] for file in ground.files if file in runs})


def _price_note(steps: Mapping | None) -> str:
    if steps is None:
        return NO_STEPS
    batches = "; ".join(f"{task}: {batch}" for task, batch in steps["batches"].items())
    return (
        f"{STEPS} Steps were timed on {machine_note(steps['machine'])}. A batch has, in {batches}."
    )


def _not_measured(ground: Ground) -> str:
    return (
        f"Not measured yet: `{ground.command}`, then `python -m benchmarks.keep_run "
        f"runs/{ground.run}` and `python -m benchmarks.tables`."
    )


def _section(one: Standings, steps: list[Mapping] | None = None) -> list[str]:
    """A table and what is to be said of it; without steps, without their price."""
    difference = [f"{one.first}, less"] if one.differences else []
    price = [] if steps is None else ["step", "memory, MiB"]
    head = ["scheme", *one.figures, *difference, "parameters", *price]
    verdict = one.verdict(one.first)
    bold = [] if verdict is None else [verdict.best, *verdict.alike]
    rows = []
    for name in one.ranked:
        figures = [_figure(one, column, name) for column in one.figures]
        if name in bold:
            figures[0] = f"**{figures[0]}**"
        row = [f"`{name}`: {one.ground.title_of(name)}", *figures]
        if difference:
            row.append(_difference(one, name))
        row.append(f"{one.parameters[name]:,}")
        rows.append(row if steps is None else [*row, *_price(one, name, steps)])
    return [markdown_table(head, rows, 1), _note(one)]


def _price(one: Standings, name: str, steps: list[Mapping]) -> list[str]:
    for row in steps:
        if (row["task"], row["scheme"]) == (one.ground.task, name):
            mib = row["growth_mib"]
            return [ratio_cell(row["ratio"]), NOT_MEASURED if mib is None else f"{mib:.0f}"]
    return [NOT_MEASURED] * 2


def _figure(one: Standings, column: str, name: str) -> str:
    values = one.figures[column].get(name)
    if not values:
        return NOT_MEASURED
    digits = digits_of(column)
    cell = mean_and_spread(values, digits=digits)
    if column == one.first and name in one.intervals:
        low, high = (f"{end:.{digits}f}" for end in one.intervals[name])
        cell += f" ({low} to {high})"
    return cell


def _difference(one: Standings, name: str) -> str:
    """From the scheme that the run compares with, over other choices of the sentences."""
    if name not in one.differences:
        return "-"
    found = one.differences[name]
    bleu = found["bleu"]
    return f"`{found['from']}`: {bleu['value']:+.1f} ({bleu['low']:+.1f} to {bleu['high']:+.1f})"


def _note(one: Standings) -> str:
    """How long was trained and with which seeds, what they tell, and what is not known."""
    counts = Counter(tuple(one.seeds[name]) for name in one.ranked)
    seeds = "; ".join(
        f"{schemes} scheme{'s' * (schemes > 1)} with seed{'s' * (len(which) > 1)} "
        f"{', '.join(map(str, which))}"
        for which, schemes in sorted(counts.items(), key=lambda item: -len(item[0]))
    )
    verdict = one.verdict(one.first)
    compared = [] if verdict is None else [*verdict.alike, *verdict.apart]
    told = (
        " No two have several seeds in common, so nothing is told apart."
        if verdict is None
        else f" Over seeds `{verdict.best}` was compared with "
        f"{listed([f'`{name}`' for name in one.by(one.first) if name in compared])}."
    )
    unknown = "".join(
        f" The settings of {file} are unknown: it was kept before they were said."
        for file in one.unknown
    )
    return f"{one.steps:,} steps each; {seeds}.{told}{unknown}"
