"""The tasks of the league: which schemes each knows, and the figures that its metrics hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relpos_tasks.models.map_positions import MAP_POSITIONS
from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.translation.positions import title_of
from relpos_tasks.translation.split import MEASURED_BEYOND, TRAINED_UP_TO
from relpos_tasks.vision.wording import TEST_TITLES

__all__ = ["GROUNDS", "LONG_SENTENCES", "Figures", "Ground", "digits_of"]

# By column of the table and scheme: a figure for each seed.
Figures = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Ground:
    """A task on which schemes are compared.

    Args:
        task: as in `relpos TASK compare`.
        title: of its section.
        options: of the command that compares all schemes, beside its positions.
        about: what is measured.
        unit: of the first figure.
        less_is_better: whether that holds for the first figure.
        title_of: a scheme by name; None for one that the task does not know.
        figures: what a run's metrics hold, the figure that ranks first.
        run: the name of the run of all schemes, or of as many as one run can take.
        first_scores: where a scheme's metrics have scores of the first figure that know how much
            another choice of the test data changes, a difference from another scheme among them.
        parts: what the names of the kept runs have behind that name: nothing for the one of all
            schemes, `_rest` for those it left out, `_seeds` for those trained with several seeds,
            `_ablation` for one scheme's variants.
    """

    task: str
    title: str
    options: str
    about: str
    unit: str
    less_is_better: bool
    title_of: Callable[[str], str | None]
    figures: Callable[[Mapping], Figures]
    run: str
    first_scores: Callable[[Mapping], Mapping] | None = None
    parts: Sequence[str] = ("", "_seeds")

    @property
    def files(self) -> list[str]:
        """The kept results."""
        return [f"{self.run}{part}.json" for part in self.parts]

    @property
    def command(self) -> str:
        """What compares all schemes."""
        return f"relpos {self.task} compare{self.options} --positions all --name {self.run}"


def digits_of(column: str) -> int:
    """How many digits a figure of that column has behind the point.

    Args:
        column: as in `Figures`.
    """
    return 1 if column.startswith("BLEU") else 3


def _sequence_title(name: str) -> str | None:
    return POSITIONS[name].title if name in POSITIONS else None


def _translation_title(name: str) -> str | None:
    """Of Shaw's scheme also with the clipping distance k in its name, and with one table alone."""
    try:
        return title_of(name)
    except ValueError:
        return None


def _map_title(name: str) -> str | None:
    return MAP_POSITIONS[name].title if name in MAP_POSITIONS else None


def _music_figures(metrics: Mapping) -> Figures:
    figures: Figures = {
        "held out": {name: found["nats_by_seed"] for name, found in metrics["held_out"].items()}
    }
    for name, of_seeds in metrics["lengths_by_seed"].items():
        for window in sorted(of_seeds[0], key=int):
            column = figures.setdefault(f"{int(window):,} tokens", {})
            column[name] = [nats[window] for nats in of_seeds]
    return figures


def _vision_figures(metrics: Mapping) -> Figures:
    return {
        title: {
            name: [accuracy[test] for accuracy in found["by_seed"]]
            for name, found in metrics["held_out"].items()
        }
        for test, title in TEST_TITLES.items()
    }


def _translation_figures(metrics: Mapping) -> Figures:
    held_out = metrics["held_out"]
    return {
        "BLEU": {name: found["bleu_by_seed"] for name, found in held_out.items()},
        "nats": {name: found["nats_by_seed"] for name, found in held_out.items()},
    }


def _long_sentence_figures(metrics: Mapping) -> Figures:
    held_out = metrics["held_out"]
    return {
        "BLEU, longer": {
            name: found["beyond_training"]["bleu_by_seed"] for name, found in held_out.items()
        },
        "BLEU, all": {name: found["bleu_by_seed"] for name, found in held_out.items()},
    }


GROUNDS = {
    ground.task: ground
    for ground in (
        Ground(
            "music", "Music", "",
            "A decoder on Bach's chorales: nats per token on the held-out pieces, and on those "
            "long enough with windows of the length of training, twice and four times that, on "
            "the same tokens. Less is better.",
            "nats per token", True, _sequence_title, _music_figures,
            "league_music",
        ),
        Ground(
            "vision", "Vision", "",
            "An encoder of canvases with handwritten digits: the share of held-out ink pixels "
            "labelled rightly where digits stand as in training (upper left of 16 x 16), where "
            "they are shifted, and on canvases of other sizes. More is better; guessing gives 0.1.",
            "of the ink pixels", False, _map_title, _vision_figures,
            "league_vision",
        ),
        Ground(
            "translation", "Translation", " --data FOLDER",
            "An encoder-decoder on sentence pairs: BLEU on the held-out sentences (more is better) "
            "and nats per target token (less is better).",
            "BLEU", False, _translation_title, _translation_figures,
            "league_translation", lambda found: found, parts=("", "_rest", "_seeds", "_ablation"),
        ),
    )
}  # fmt: skip

# Another training than that of `GROUNDS["translation"]`, with the same model.
LONG_SENTENCES = Ground(
    "translation", "Longer sentences", " --data FOLDER --length-test",
    f"Trained on sentences of at most {TRAINED_UP_TO} words: BLEU on held-out ones of more than "
    f"{MEASURED_BEYOND} words, and on held-out ones of all lengths. More is better.",
    f"BLEU beyond {MEASURED_BEYOND} words", False, _translation_title, _long_sentence_figures,
    "league_translation_lengths", lambda found: found["beyond_training"],
)  # fmt: skip
