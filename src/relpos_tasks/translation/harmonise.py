"""Harmonising as a translation: the soprano is the source, the three lower voices the target.

For a first minute with an encoder-decoder, without any download: the chorales are those inside
music21, split and transposed as in `music`. Both sides have the tokens of `music.tokens`: a source
is the soprano, one token for each sixteenth, and a target is A T B of its first sixteenth, A T B of
the next, and so on, so that there are three target tokens for each of the source and none is needed
to end. The token 0 begins every target and stands behind the end of a source. Embeddings are better
not tied (`tied=False`): with so few tokens a matrix for each use costs little, and training from
the start is much faster.

Crops and windows are those of the music task with one voice taken out: `WINDOW` tokens of four
voices are 96 sixteenths, six bars of 4/4, and become 96 tokens of source and 288 of target. What is
longer is measured and harmonised in windows that slide by half: the first is written whole, each
further one goes on from the half that is there already. So no token is written or scored with less
than half a window before it but the first ones of a piece, none with a longer window than those of
training, and every target token of a piece is scored exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray
from torch import Tensor

from ..models.beam_search import BeamSearch, beam_search
from ..models.encoder_decoder import EncoderDecoder
from ..models.threads import one_thread
from ..music.data import ChoraleData
from ..music.generate import check_melody
from ..music.melody import Melody
from ..music.piece import SILENCE, VOICES, Piece, strikes_of
from ..music.split import Split
from ..music.tokens import BEGIN, Vocabulary
from ..training.language_model import IGNORE
from ..training.sequence_to_sequence import Batch

__all__ = ["WINDOW", "HarmonyData", "as_translation", "harmonise", "harmony_windows", "soprano_of"]

WINDOW = 384
_LOWER = len(VOICES) - 1
_WINDOWS_AT_ONCE = 16


def as_translation(inputs: Int64[Tensor, "b n"], targets: Int64[Tensor, "b n"]) -> Batch:
    """A batch of four voices, as the music task has it, as one for an encoder-decoder.

    Args:
        inputs: the token before each target.
        targets: S A T B of whole sixteenths, `IGNORE` where a token is not scored.

    Returns:
        Source `(b, n / 4)`, 0 behind its end; the target's input and the target `(b, 3 n / 4)`,
        `IGNORE` where a token is not scored.

    >>> S, A, T, B = 5, 4, 3, 2
    >>> as_translation(torch.tensor([[0, S, A, T]]), torch.tensor([[S, A, T, B]]))
    (tensor([[5]]), tensor([[0, 4, 3]]), tensor([[4, 3, 2]]))
    """
    # What is not scored is in the next input, if it is there at all.
    following = torch.cat((inputs[:, 1:], torch.full_like(inputs[:, :1], BEGIN)), 1)
    tokens = torch.where(targets == IGNORE, following, targets)
    soprano, lower = tokens.unflatten(1, (-1, len(VOICES))).split([1, _LOWER], dim=2)
    written = torch.cat((torch.full_like(inputs[:, :1], BEGIN), lower.flatten(1)[:, :-1]), 1)
    scored = targets.unflatten(1, (-1, len(VOICES)))[:, :, 1:].flatten(1)
    return soprano.flatten(1), written, scored


class HarmonyData(ChoraleData):
    """Crops to train on, and the validation pieces in windows, all through `as_translation`.

    For `SequenceToSequenceTask(..., padding=0)`; everything else is as in `ChoraleData`.
    """

    def train_dataloader(self) -> Any:
        """The batches of this device."""
        return _ResumableTranslations(super().train_dataloader())

    def val_dataloader(self) -> Any:
        """Every target token of every validation piece, once."""
        return _Translations(super().val_dataloader())


class _Translations:
    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return (as_translation(*batch) for batch in self._batches)


class _ResumableTranslations(_Translations):
    def state_dict(self) -> dict[str, int]:
        """The next step, for Lightning's checkpoints."""
        return self._batches.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a step."""
        self._batches.load_state_dict(state)


def harmony_windows(
    pieces: Iterable[Piece], vocabulary: Vocabulary, *, window: int = WINDOW
) -> Iterable[Batch]:
    """Batches in which every target token of some pieces is scored exactly once.

    `mean_nats(model, harmony_windows(pieces, vocabulary))` is the figure to report: held-out nats
    per target token.

    Args:
        pieces: any pieces.
        vocabulary: it must cover them.
        window: tokens of all four voices in a window, a multiple of 8.

    Raises:
        ValueError: if the window is not a positive multiple of 8.
    """
    measured = Split(train=(), valid=tuple(pieces), held_out=())
    return HarmonyData(
        measured, vocabulary, window=window, batch=_WINDOWS_AT_ONCE // 2, steps=0, seed=0
    ).val_dataloader()


def soprano_of(piece: Piece) -> Melody:
    """The soprano of a piece, to be harmonised anew.

    Args:
        piece: any piece.
    """
    return Melody(
        piece.pitches[:, 0], piece.strikes[:, 0], piece.pickup, piece.steps_per_bar, piece.fifths
    )


def harmonise(
    model: EncoderDecoder,
    vocabulary: Vocabulary,
    melody: Melody,
    *,
    window: int = WINDOW,
    beam: int = 4,
    name: str = "chorale",
    progress: Callable[[int], None] = lambda _: None,
) -> Piece:
    """The melody with an alto, a tenor and a bass below it, by beam search, window by window.

    The piece is one of the music task: `music.export.write_chorale` writes it as a score, as MIDI
    and as sound, `music.score.svg_pages` engraves it.

    Args:
        model: trained on `HarmonyData`.
        vocabulary: its tokens.
        melody: the soprano, such as `read_melody` or `soprano_of` gives; it stays as it is.
        window: tokens of all four voices in a window, as in training.
        beam: hypotheses of each window.
        name: of the piece.
        progress: called with the number of sixteenths that are written.

    Raises:
        ValueError: if the melody has no step, is longer than a chorale may be, or leaves the
            vocabulary, the model has other tokens, or a number is out of range.
    """
    tokens = (model.config.source_vocabulary, model.config.target_vocabulary)
    if tokens != (vocabulary.size,) * 2:
        raise ValueError(
            f"harmonise: model must have {vocabulary.size} tokens on both sides, got {tokens}"
        )
    if window < 8 or window % 8:
        raise ValueError(f"harmonise: window must be a positive multiple of 8, got {window}")
    check_melody("harmonise: melody", melody)
    soprano = _soprano_tokens(vocabulary, melody)
    if not len(soprano):
        raise ValueError("harmonise: melody must have a step, got none")
    lower: list[int] = []
    steps, start = window // len(VOICES), 0
    with one_thread():
        while len(lower) < _LOWER * len(soprano):
            lower += _continued(
                model, soprano[start : start + steps].tolist(), lower[_LOWER * start :], beam=beam
            )
            start += steps // 2
            progress(len(lower) // _LOWER)
    grid = np.concatenate([soprano[:, None], np.reshape(lower, (-1, _LOWER))], axis=1)
    return vocabulary.decode(
        grid.ravel(),
        name=name,
        pickup=melody.pickup,
        steps_per_bar=melody.steps_per_bar,
        fifths=melody.fifths,
    )


def _soprano_tokens(vocabulary: Vocabulary, melody: Melody) -> Int64[ndarray, "steps"]:
    """One token for each sixteenth of a melody."""
    pitches = np.full((len(melody.pitches), len(VOICES)), SILENCE, np.int16)
    pitches[:, 0] = melody.pitches
    onsets = strikes_of(pitches)
    onsets[:, 0] |= melody.onsets
    return vocabulary.encode(Piece("the melody", pitches, onsets))[1 :: len(VOICES)]


def _continued(
    model: EncoderDecoder, soprano: Sequence[int], written: Sequence[int], *, beam: int
) -> tuple[int, ...]:
    """The lower voices of one window, from where they are written already."""
    device = model.source_embedding.weight.device
    # All hypotheses are equally long, so that no penalty changes their order.
    how = BeamSearch(
        None, beam=beam, alpha=0.0, max_length=lambda steps: _LOWER * steps - len(written)
    )
    ((best,),) = beam_search(
        model,
        torch.tensor([soprano], device=device),
        torch.tensor([[BEGIN, *written]], device=device),
        how,
    )
    return best.tokens
