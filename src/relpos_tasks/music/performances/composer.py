"""A new performance at the end of a comparison, and what the page says of performances."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...models.decoder import DecoderLM
from ...models.positions import POSITIONS
from ...report.blocks import DownloadBlock, FigureBlock, Section, TextBlock
from ..blocks import PlayerBlock
from ..composer import Words
from ..wording import composing_model
from .export import check_performance, performance_contents
from .generate import check_seconds, perform
from .performance import Performance
from .piano_roll import piano_roll
from .settings import PerformanceSettings
from .source import PerformanceSource
from .tokens import seconds_of

__all__ = ["PerformanceComposer"]

_STEM = "performance"


@dataclass(frozen=True)
class PerformanceComposer:
    """Lets a model begin a performance of its own.

    Args:
        seconds: how long.

    Raises:
        ValueError: if it is out of range.
    """

    seconds: float = 30.0

    def __post_init__(self) -> None:
        check_seconds("--seconds:", self.seconds)

    @property
    def length(self) -> str:
        """How long the piece is to be."""
        return f"{self.seconds:g} seconds"

    def check(self, folder: Path) -> None:
        """Raise if the performance could not be written.

        Args:
            folder: of the run.
        """
        check_performance(folder / _STEM)

    def words(self, settings: PerformanceSettings, source: PerformanceSource) -> Words:
        """What the page calls things.

        Args:
            settings: sizes and budget.
            source: the performances.
        """
        return Words(
            title="Piano performances with relative and with absolute positions",
            learned=f"the MIDI files of the folder {source.name}",
            works="performances",
            new="began a performance of its own",
            changed="transposed and stretched at random",
            rows="Tokens are events: how many there are between two notes depends on how many "
            "sound, so that rows speak of distance in events and not in time.",
            protocol=_protocol(settings, source),
        )

    def compose(
        self,
        model: DecoderLM,
        settings: PerformanceSettings,
        source: PerformanceSource,
        *,
        position: str,
        seed: int,
    ) -> Section:
        """A new performance.

        Args:
            model: that makes it.
            settings: sizes and budget.
            source: the performances that it learned.
            position: of the model.
            seed: of the sampling.

        Returns:
            The performance as a part of the page, with its files.
        """
        performance = perform(model, window=settings.window, seconds=self.seconds, seed=seed)
        files = performance_contents(Path(_STEM), performance)
        midi, wav = files.values()
        download = DownloadBlock("Download MIDI", f"{_STEM}.mid", midi, "audio/midi")
        roll = FigureBlock(
            piano_roll(performance),
            "Piano roll of the performance",
            "A line for each note, darker where it is struck harder.",
        )
        note = TextBlock(_note(performance, settings, position))
        blocks = [note, PlayerBlock(wav, download), roll]
        return Section("performance", "A new performance", blocks, files)


def _note(performance: Performance, settings: PerformanceSettings, position: str) -> str:
    return (
        f"{performance.notes:,} notes in {performance.seconds:.0f} seconds by "
        f"{composing_model(settings, 'performances')} ({POSITIONS[position].title}), drawn one "
        f"event at a time. It sees at most the {settings.window:,} tokens that it was trained on: "
        "whenever they are full, the later half is kept. Nothing was chosen among several tries."
    )


_BY_TABLE = "The split is the one that the table with the files gives them."
_BY_NOTES = (
    "The split is by what a file holds: copies of the same performance, transposed or at another "
    "tempo too, fall into the same part, but other performances of the same music need not."
)


def _protocol(settings: PerformanceSettings, source: PerformanceSource) -> list[str]:
    window = settings.window
    return [
        "Tokens are events (Oore et al. 2018): a note begins or ends (128 pitches each), time "
        "moves on by 10 ms to 1 s, or the notes after it are struck harder or softer (32 steps); "
        f"{source.vocabulary.size} tokens with the one that begins a performance. The sustain "
        "pedal holds notes, drums are left out, and all other tracks are one piano.",
        f"Files: {source.split}. {_BY_TABLE if source.split.as_published else _BY_NOTES} "
        "Nothing was chosen by looking at the held-out ones.",
        f"Every token {_of(settings.held_out_tokens, window)} is scored once, in windows of "
        f"{window:,} tokens that slide by {window // 2:,}; the begin token is not scored. What is "
        f"watched in training are the tokens {_of(settings.valid_tokens, window, 'validation')}.",
        f"A second of the held-out music has {_tokens_per_second(settings, source):.1f} tokens on "
        "average; nats per second are so many times those per token.",
        "Training crops are transposed by -3 to 3 semitones and played at 0.95 to 1.05 times their "
        "length (Huang et al. 2018).",
    ]


def _tokens_per_second(settings: PerformanceSettings, source: PerformanceSource) -> float:
    sequences = source.held_out(settings.held_out_tokens, window=settings.window)
    seconds = sum(map(seconds_of, sequences))
    return sum(len(tokens) - 1 for tokens in sequences) / max(seconds, 0.01)


def _of(most: int | None, window: int, part: str = "held-out") -> str:
    """Of which tokens a part of the split consists."""
    if most is None:
        return f"of the {part} performances"
    return (
        f"of the {part} performances (if all have more than {most:,}, of the beginnings of as many "
        f"of them as give at least {4 * window:,} each)"
    )
