"""Numbers as a report writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..training.clock import TrainingTime
from ..training.settings import TrainingSettings

__all__ = ["busy_note", "count", "duration", "listed", "seeds_note", "training_notes"]


# Of how many models a sentence names each.
_NAMED = 3


def count(number: int) -> str:
    """A whole number with commas.

    >>> count(612345)
    '612,345'
    """
    return f"{number:,}"


def duration(seconds: float) -> str:
    """Minutes and seconds, rounded to the second.

    >>> duration(245.4)
    '4 min 05 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def listed(items: Sequence[str]) -> str:
    """Items with commas, and "and" before the last.

    >>> listed(["keys", "queries", "values"])
    'keys, queries and values'
    """
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def seeds_note(seeds: int) -> str:
    """What means over seeds are, or that one seed is no measure of another.

    Args:
        seeds: with how many each model was trained.

    >>> seeds_note(3)
    'Mean and standard deviation over 3 seeds.'
    """
    if seeds == 1:
        return "Each was trained once: how much another seed changes is not known."
    return f"Mean and standard deviation over {seeds} seeds."


def training_notes(settings: TrainingSettings) -> list[str]:
    """What is to be said of a training that not every one has, as sentences.

    Args:
        settings: how the models were trained.

    >>> training_notes(TrainingSettings())
    []
    """
    notes = []
    if settings.muon_learning_rate is not None:
        notes.append("Muon moves the weight matrices of every model, AdamW all else.")
    if settings.averaging is not None:
        notes.append(
            "What is measured, written and shown by the curves of validation is an exponential "
            "moving average of the weights: after each step it moves towards them by "
            f"{1 - settings.averaging:.4g} of the way, in the first steps by 9 / (n + 10) where "
            "that is more, n steps being in it. Training goes on from the plain weights, and its "
            "curves are theirs."
        )
    return notes


def busy_note(times: Mapping[str, Sequence[TrainingTime]]) -> str:
    """Which times do not compare models, since the machine had other work; "" if they all do.

    Args:
        times: of the trainings of each model.
    """
    crowded = {name: [t for t in of_seeds if t.crowded] for name, of_seeds in times.items()}
    busy = {name: found for name, found in crowded.items() if found}
    if not busy:
        return ""
    used = {
        name: max(others)
        for name, found in busy.items()
        if (others := [time.others for time in found if time.others is not None])
    }
    how_much = f": other programs used {_cores(used)}" if used else ""
    return f"* Measured on a busy machine{how_much}. Such a time does not compare models."


def _cores(used: Mapping[str, float]) -> str:
    """How many cores other programs used while each model was trained; of many, from and to."""
    if len(used) > _NAMED:
        least, most = min(used.values()), max(used.values())
        return f"{least:.1f} to {most:.1f} cores while models were trained"
    return listed(
        [f"{cores:.1f} cores while the model with {name} was trained"
         for name, cores in used.items()]
    )  # fmt: skip
