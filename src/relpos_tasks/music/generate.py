"""New chorales from a trained model, by cached decoding on the grid of four voices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Int16, Int64
from numpy import ndarray
from torch import Tensor

from ..models.decoder import DecoderLM
from ..models.generation import sample
from ..models.threads import one_thread
from ..training.limits import check_seed
from .melody import Melody
from .piece import SILENCE, VOICES, Piece
from .tokens import BEGIN, REST, Vocabulary

__all__ = ["MAX_BARS", "STEPS_PER_BAR", "VoiceConstraint", "check_bars", "check_melody", "compose"]

STEPS_PER_BAR = 16
# A quarter of an hour: more than any chorale of Bach's, and a score that is still written quickly.
MAX_BARS = 256
# Seven in ten of the chorales in 4/4 begin with a quarter before the first bar, and their last
# bar is a quarter short: there the last chord of ours lies, from the first beat on.
_PICKUP = 12
_LAST = 12


class VoiceConstraint:
    """Which tokens may come next: four voices per step, a pitch held only after itself.

    Each voice stays in its range, and the last chord is held to the end.

    Args:
        vocabulary: the tokens.
        ranges: lowest and highest MIDI pitch of each voice.
        steps: sixteenths in all.
        last: the sixteenth after which nothing is struck any more.
        melody: what the soprano sings; None leaves it free.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        ranges: Int16[ndarray, "4 2"],
        *,
        steps: int,
        last: int,
        melody: Melody | None = None,
    ) -> None:
        self.vocabulary, self.steps, self.last, self.melody = vocabulary, steps, last, melody
        pitches = np.arange(vocabulary.lowest, vocabulary.highest + 1)
        # For each voice: nothing sounds, each pitch struck, each pitch held (never by default).
        self._struck = np.zeros((len(VOICES), vocabulary.size), np.bool_)
        self._struck[:, REST] = True
        first = vocabulary.struck(vocabulary.lowest)
        self._struck[:, first : first + vocabulary.pitches] = (pitches >= ranges[:, :1]) & (
            pitches <= ranges[:, 1:]
        )

    def allowed(self, tokens: Int64[ndarray, "tokens"]) -> Bool[ndarray, "vocabulary"]:
        """The tokens that may follow.

        Args:
            tokens: so far, with the begin token in front.
        """
        step, voice = divmod(len(tokens) - 1, len(VOICES))
        if voice == 0 and self.melody is not None:
            return self._only(self._sung(step))
        held = self.vocabulary.held(int(tokens[-len(VOICES)]) if step else BEGIN)
        if step > self.last:
            return self._only(held)
        allowed = self._struck[voice].copy()
        allowed[held] = True
        return allowed

    def _sung(self, step: int) -> int:
        assert self.melody is not None
        pitch = int(self.melody.pitches[step])
        if pitch == SILENCE:
            return REST
        token = self.vocabulary.struck(pitch)
        return token if self.melody.onsets[step] else self.vocabulary.held(token)

    def _only(self, token: int) -> Bool[ndarray, "vocabulary"]:
        allowed = np.zeros(self.vocabulary.size, np.bool_)
        allowed[token] = True
        return allowed


def compose(
    model: DecoderLM,
    vocabulary: Vocabulary,
    ranges: Int16[ndarray, "4 2"],
    *,
    bars: int = 8,
    melody: Melody | None = None,
    temperature: float = 0.9,
    top_p: float = 0.95,
    seed: int = 0,
    name: str = "chorale",
    progress: Callable[[int], None] | None = None,
) -> Piece:
    """A chorale: bars of 4/4 after an upbeat of a quarter, or as long as the melody.

    Args:
        model: a trained model.
        vocabulary: its tokens.
        ranges: lowest and highest MIDI pitch of each voice.
        bars: how many, the last one that quarter short; not used with a melody.
        melody: what the soprano sings, note for note; within its range, and no longer than
            `MAX_BARS` of 4/4.
        temperature: of the sampling; 0 takes the likeliest token.
        top_p: sample among the likeliest tokens that have this much probability together.
        seed: of the sampling.
        name: of the piece.
        progress: called with the sixteenths that are done.

    Raises:
        ValueError: if a number is out of range.
    """
    check_bars("compose: bars", bars)
    if melody is not None:
        check_melody("compose: melody", melody)
    steps = bars * STEPS_PER_BAR if melody is None else len(melody.pitches)
    last = steps - _LAST if melody is None else _last_strike(melody)
    constraint = VoiceConstraint(vocabulary, ranges, steps=steps, last=last, melody=melody)
    tokens = _drawn(
        model,
        constraint,
        temperature=temperature,
        top_p=top_p,
        generator=torch.Generator().manual_seed(check_seed("compose", seed)),
        progress=progress or (lambda steps: None),
    )
    bar = {"pickup": _PICKUP, "steps_per_bar": STEPS_PER_BAR}
    if melody is not None:
        bar = {"pickup": melody.pickup, "steps_per_bar": melody.steps_per_bar}
    piece = vocabulary.decode(tokens, name=name, **bar)
    return replace(piece, fifths=_fifths(piece) if melody is None else melody.fifths)


def check_bars(argument: str, bars: int) -> None:
    """Raise unless a chorale may have so many bars.

    Args:
        argument: what the message calls it.
        bars: any number.

    Raises:
        ValueError: unless it is in `1..MAX_BARS`.
    """
    if not 1 <= bars <= MAX_BARS:
        raise ValueError(f"{argument} must be in 1..{MAX_BARS}, got {bars}")


def check_melody(argument: str, melody: Melody) -> None:
    """Raise if a melody is too long for a chorale.

    Args:
        argument: what the message calls it.
        melody: any.

    Raises:
        ValueError: if it is longer than `MAX_BARS` of 4/4.
    """
    steps, most = len(melody.pitches), MAX_BARS * STEPS_PER_BAR
    if steps > most:
        raise ValueError(f"{argument} must be at most {most} sixteenths long, got {steps}")


def _drawn(
    model: DecoderLM,
    constraint: VoiceConstraint,
    *,
    temperature: float,
    top_p: float,
    generator: torch.Generator,
    progress: Callable[[int], None],
) -> Int64[ndarray, "tokens"]:
    """The begin token and `constraint.steps` steps after it."""

    def constrain(tokens: Tensor, logits: Tensor) -> Tensor:
        drawn = tokens[0].numpy()
        progress((len(drawn) - 1) // len(VOICES))
        return logits.masked_fill(torch.from_numpy(~constraint.allowed(drawn)), -torch.inf)

    with one_thread():
        tokens = sample(
            model,
            torch.tensor([[BEGIN]]),
            constraint.steps * len(VOICES),
            temperature=temperature,
            top_p=top_p,
            generator=generator,
            constrain=constrain,
        )
    return tokens[0].numpy()


def _last_strike(melody: Melody) -> int:
    struck = melody.onsets.nonzero()[0]
    return int(struck[-1]) if len(struck) else 0


def _fifths(piece: Piece) -> int:
    """The key signature, -5..6 fifths, whose scale holds most of the sounding sixteenths."""
    sounding = np.bincount(piece.pitches[piece.pitches != SILENCE] % 12, minlength=12)
    covered = {
        fifths: int(sum(sounding[7 * (fifths + place) % 12] for place in range(-1, 6)))
        for fifths in range(-5, 7)
    }
    return max(covered, key=lambda fifths: (covered[fifths], -abs(fifths)))
