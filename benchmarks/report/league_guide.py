"""Which scheme when, in sentences that are filled from what was measured and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from relpos_tasks.report.wording import listed
from relpos_tasks.training.comparison import mean_and_spread
from relpos_tasks.translation.split import TRAINED_UP_TO
from relpos_tasks.vision.wording import TEST_TITLES

from ..workloads.training_jobs import NONE
from .cells import format_change, format_ratio
from .league_grounds import GROUNDS, digits_of
from .league_remedies import Remedy, change_of
from .league_standings import Standings

__all__ = ["guide"]

# Nats per token that a longer input may cost before it is called worse.
STAYS = 0.03


def guide(
    found: Mapping[str, Standings],
    long_sentences: Standings | None,
    steps: Sequence[Mapping],
    remedies: Sequence[Remedy] = (),
) -> str:
    """The guide by need; a need of which nothing was measured is left out.

    Args:
        found: the standings, by task.
        long_sentences: those of the length test of translation.
        steps: rows of `benchmarks.steps`; none where it has not run.
        remedies: schemes of music that were trained with an option against longer inputs.
    """
    needs = {
        "Best at the lengths and sizes of training": [
            _best(one, one.first) for one in found.values()
        ],
        "Inputs longer than those of training": [
            *(_longer(found["music"], remedies) if "music" in found else []),
            *(_longer_sentences(long_sentences) if long_sentences else []),
        ],
        "Maps of other sizes": _other_maps(found["vision"]) if "vision" in found else [],
        "The cheapest step": _cheapest(steps),
        "The fewest parameters": [line for one in found.values() for line in _fewest(one)],
    }
    parts = [
        f"**{need}**\n\n" + "\n".join(f"- {line}" for line in lines)
        for need, lines in needs.items()
        if lines
    ]
    return "\n\n".join(parts) or "Nothing is measured yet."


def _best(one: Standings, column: str, where: str = "") -> str:
    """The best of a column, and what the seeds and the sentences tell of the others."""
    ranked, verdict = one.by(column), one.verdict(column)

    def said(name: str) -> str:
        mean = mean_and_spread(one.figures[column][name], digits=digits_of(column))
        return f"`{name}`, {mean} {one.ground.unit}"

    text = f"{one.ground.title}{where}: {said(ranked[0])}"
    if len(ranked) == 1:
        return f"{text}; no other was measured."
    sentences = _of_other_sentences(one, ranked[0]) if column == one.first else ""
    if verdict is None:
        return f"{text}, told apart from no other for want of seeds{sentences}."
    if verdict.best != ranked[0]:
        text += f", with one seed; of those with several {said(verdict.best)}"
    text += f"; not told apart from it: {_names(verdict.alike)}" if verdict.alike else ""
    if verdict.apart:
        others = _names(verdict.apart) if verdict.alike or verdict.untested else "all others"
        text += f"; worse by more than another seed explains: {others}"
    if verdict.untested:
        text += f"; not told apart, for want of seeds: {_names(verdict.untested)}"
    return f"{text}{sentences}."


def _of_other_sentences(one: Standings, name: str) -> str:
    """What a scheme's difference is when the test sentences are drawn anew; "" if unknown."""
    if name not in one.differences:
        return ""
    found = one.differences[name]
    bleu = found["bleu"]
    return (
        f"; with the first seed and its sentences drawn anew it has {bleu['low']:+.1f} to "
        f"{bleu['high']:+.1f} BLEU against `{found['from']}` (95 %, not corrected for its having "
        "been picked as the best)"
    )


def _longer_sentences(one: Standings) -> list[str]:
    return [_best(one, one.first, f", trained on at most {TRAINED_UP_TO} words")]


def _longer(music: Standings, remedies: Sequence[Remedy]) -> list[str]:
    """Which schemes are good at the window of training and at the longest, and which change."""
    windows = [column for column in music.figures if column != music.first]
    if len(windows) < 2:
        return []
    shortest, longest = windows[0], windows[-1]
    changes = {
        name: fmean(music.figures[longest][name]) - fmean(music.figures[shortest][name])
        for name in music.by(longest)
    }

    def with_changes(names: list[str]) -> str:
        means = {name: fmean(music.figures[longest][name]) for name in names}
        return ", ".join(
            f"`{name}` {means[name]:.3f} ({format_change(changes[name])})" for name in names
        )

    stay = [name for name, change in changes.items() if round(change, 3) <= STAYS]
    lose = [name for name in changes if name not in stay]
    text = f"Music, trained on {shortest}, read {longest} at a time:"
    return [
        *_good_at_both(music, stay, remedies, longest),
        *(
            f"{text} {bound} {STAYS} nats per token worse than at {shortest} "
            f"{'is' if len(names) == 1 else 'are'} {with_changes(names)}."
            for bound, names in (("at most", stay), ("more than", lose))
            if names
        ),
        *(_with_remedy(one, longest) for one in remedies),
    ]


def _with_remedy(one: Remedy, longest: str) -> str:
    """What an option changes beyond the length of training and at it, means over the seeds."""

    def said(figures: Mapping[str, Sequence[float]]) -> str:
        return f"{fmean(figures[longest]):.3f} ({format_change(change_of(figures))})"

    first = next(iter(one.given))
    text = (
        f"Music, `{one.name}` with `{one.option}`: {said(one.given)} at {longest} in place of "
        f"{said(one.without)}, and {first} {fmean(one.given[first]):.3f} in place of "
        f"{fmean(one.without[first]):.3f}."
    )
    if round(change_of(one.given), 3) > STAYS:
        text += f" It is still more than {STAYS} worse there than at the shortest length."
    return text


def _good_at_both(
    music: Standings, stay: Sequence[str], remedies: Sequence[Remedy], longest: str
) -> list[str]:
    """The schemes near the best of the first column that do not get worse beyond training."""
    of_seeds = {f"`{name}`": values for name, values in music.figures[music.first].items()}
    best = min(map(fmean, of_seeds.values()))
    good = {name: of_seeds[name] for name in (f"`{name}`" for name in stay)} | {
        f"`{one.name}` with `{one.option}`": one.given[music.first]
        for one in remedies
        if round(change_of(one.given), 3) <= STAYS
    }
    near = {name: found for name, found in good.items() if round(fmean(found) - best, 3) <= STAYS}
    if not near:
        return []
    named = ", ".join(
        f"{name} {fmean(near[name]):.3f}" + (" (one seed)" if len(near[name]) == 1 else "")
        for name in sorted(near, key=lambda name: fmean(near[name]))
    )
    return [
        f"Music, good at both: {music.first} at most {STAYS} nats per token behind the best, and "
        f"no more than that worse at {longest}: {named}."
    ]


def _other_maps(vision: Standings) -> list[str]:
    return [
        _best(vision, column, f", {column}")
        for column in list(TEST_TITLES.values())[1:]
        if column in vision.figures
    ]


def _cheapest(steps: Sequence[Mapping]) -> list[str]:
    """Which schemes cost nothing that could be seen, and which cost the most."""
    lines = []
    for task, ground in GROUNDS.items():
        rows = [row for row in steps if row["task"] == task and row["scheme"] != NONE]
        if not rows:
            continue
        free = [row["scheme"] for row in rows if row["ratio"]["p20"] <= 1]
        dearest = max(rows, key=lambda row: row["ratio"]["median"])
        said = (
            f"as far as the rounds show no dearer than without positions: {_names(free)}"
            if free else "every scheme costs more than no positions"
        )  # fmt: skip
        lines.append(
            f"{ground.title}: {said}; the most costs `{dearest['scheme']}`, "
            f"{format_ratio(dearest['ratio']['median'])} times as much."
        )
    return lines


def _fewest(one: Standings) -> list[str]:
    """Which schemes have no parameters of their own, and which have the most."""
    if NONE not in one.parameters or len(one.parameters) == 1:
        return []
    own = {
        name: count - one.parameters[NONE] for name, count in one.parameters.items() if name != NONE
    }
    without = [name for name, count in own.items() if count == 0]
    least = (
        f"none of its own {'has' if len(without) == 1 else 'have'} {_names(without)}"
        if without else _count("the fewest of its own has", own, min(own, key=own.__getitem__))
    )  # fmt: skip
    if len(own) == 1:
        return [f"{one.ground.title}: {least}."]
    most = _count("the most", own, max(own, key=own.__getitem__))
    return [f"{one.ground.title}: {least}; {most}."]


def _count(what: str, own: Mapping[str, int], name: str) -> str:
    return f"{what} `{name}`, {own[name]:,}"


def _names(names: Sequence[str]) -> str:
    return listed([f"`{name}`" for name in names])
