"""Pairs into train, valid and held-out, the same on every machine and in every order.

What a folder holds out stays held out: Multi30k's `val` is measured on, and the pairs that the
training is watched on (valid) are a fiftieth of its `train`. A file of pairs has no parts: a
fiftieth of it is held out too. Parts are cut by groups of connected pairs, by a hash of the group's
first sentence. A pair to train on that is connected with what a folder sets aside is left out and
counted. So no sentence that is trained on is in another part, not even with other punctuation; a
folder's own `val` and `test` stay as they are.

From a file of pairs each sentence is measured once: of several pairs with the same source the first
is held out and the others are not used.

The length test trains on pairs whose target has at most 10 words; it measures on held-out ones of
any length and on those of more than 12 words whose group has no pair in training. Words are what
white space separates: subwords could not say it, since they are learned from the training pairs. A
sentence of 10 words may have more subwords than one of 13: with `TextSettings.longest`,
`encode_pairs` limits training in subwords too, on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .pairs import Pair, connected_groups, digest_of, fraction_of, same_sentence
from .texts import TextError, Texts

__all__ = [
    "MEASURED_BEYOND",
    "MOST_SET_ASIDE",
    "SET_ASIDE",
    "TRAINED_UP_TO",
    "Split",
    "split_by_length",
    "split_texts",
]

# Of the groups: valid, and as many held out where the text has no part for it.
SET_ASIDE = 0.02
# Pairs of each of the parts that `split_texts` cuts, at most: more would only take longer.
MOST_SET_ASIDE = 2_000
# Words of the target in the length test.
TRAINED_UP_TO = 10
MEASURED_BEYOND = 12


@dataclass(frozen=True)
class Split:
    """Pairs to train on, to watch while training, and to measure on at the end.

    `str(split)` is a line with the pairs in each.

    Args:
        train: the pairs.
        valid: likewise.
        held_out: likewise.
        left_out: pairs that could have been trained on but for a sentence of the other parts, or
            for their length.
        too_long: pairs that could have been watched or measured but for their length.
        empty: pairs of which a sentence is empty, in no part.
    """

    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    held_out: tuple[Pair, ...]
    left_out: int = 0
    too_long: int = 0
    empty: int = 0

    def __str__(self) -> str:
        parts = (("train", self.train), ("valid", self.valid), ("held out", self.held_out))
        line = "; ".join(f"{name} {len(pairs):,} pairs" for name, pairs in parts)
        counts = (
            ("left out", self.left_out),
            ("too long to measure", self.too_long),
            ("empty", self.empty),
        )
        return "; ".join([line, *(f"{name} {count:,}" for name, count in counts if count)])

    @property
    def digest(self) -> str:
        """Of the pairs, so that a run cannot go on with others."""
        return digest_of((self.train, self.valid, self.held_out))


def split_texts(texts: Texts) -> Split:
    """The parts as the text has them, the missing ones cut from its training pairs.

    A part that is cut has a fiftieth of the groups, and at most `MOST_SET_ASIDE` pairs: of more,
    whole groups in the order of their hash as far as they fit; the rest is trained on.

    Args:
        texts: what `read_texts` returned.

    Returns:
        The split; in each part pairs stand in the order of the text.

    Raises:
        TextError: if a part has no pair.
    """
    aside = (*(texts.valid or ()), *(texts.held_out or ()))
    sources = {same_sentence(pair.source) for pair in aside}
    targets = {same_sentence(pair.target) for pair in aside}
    parts: tuple[list[list[Pair]], ...] = ([], [], [])
    left_out = 0
    for group in connected_groups(texts.train):
        if any(
            same_sentence(pair.source) in sources or same_sentence(pair.target) in targets
            for pair in group
        ):
            left_out += len(group)
        else:
            parts[_part_of(group, texts)].append(group)
    (valid, too_many), (held_out, more) = _first_groups(parts[1]), _first_groups(parts[2])
    train, valid, held_out = (
        _in_order((pair for group in part for pair in group), texts.train)
        for part in ([*parts[0], *too_many, *more], valid, held_out)
    )
    split = Split(
        train, texts.valid or valid, texts.held_out or _once(held_out), left_out, empty=texts.empty
    )
    return _checked(split, texts.name)


def split_by_length(texts: Texts, *, largest: int | None = None) -> Split:
    """Train on short sentences, to be measured on those and on longer ones.

    Args:
        texts: of a file of pairs, or of a folder whose own parts are then one text.
        largest: how many held-out pairs of more than `MEASURED_BEYOND` words there may be, chosen
            by their groups' hash; None takes all.

    Returns:
        The split; in `held_out` the long sentences come first.

    Raises:
        TextError: if a part has no pair, or none is held out that is long.
    """
    whole = (*texts.train, *(texts.valid or ()), *(texts.held_out or ()))
    together = replace(texts, train=whole, valid=None, held_out=None)
    parts: tuple[list[Pair], ...] = ([], [], [])
    long: list[list[Pair]] = []
    for group in connected_groups(whole):
        part = _part_of(group, together)
        short = [pair for pair in group if words(pair.target) <= TRAINED_UP_TO]
        beyond = [pair for pair in group if words(pair.target) > MEASURED_BEYOND]
        if part < 2 and short:
            parts[part].extend(short)
        elif part == 2:
            parts[part].extend(pair for pair in group if pair not in beyond)
        if beyond and (part == 2 or not short):
            long.append(beyond)
    long.sort(key=fraction_of)
    measured = _once(pair for group in long for pair in group)[:largest]
    if not measured:
        raise TextError(
            f"{texts.name}: must have sentences of more than {MEASURED_BEYOND} words, got none "
            "that is not connected with a shorter one"
        )
    train, valid, short = (_in_order(part, whole) for part in parts)
    held_out = _once((*measured, *short))
    left_out = len(whole) - len(train) - len(valid) - len(held_out)
    return _checked(Split(train, valid, held_out, left_out, empty=texts.empty), texts.name)


def words(text: str) -> int:
    """How many words a sentence has, as white space separates them.

    Args:
        text: the sentence.

    >>> words("Ein Mann schläft.")
    3
    """
    return len(text.split())


def _part_of(group: Sequence[Pair], texts: Texts) -> int:
    """0 for train, 1 for valid, 2 for held out; what the text has itself is not cut from train."""
    fraction = fraction_of(group)
    if texts.held_out is None and fraction >= 1 - SET_ASIDE:
        return 2
    return 1 if texts.valid is None and fraction < SET_ASIDE else 0


def _first_groups(groups: Iterable[list[Pair]]) -> tuple[list[list[Pair]], list[list[Pair]]]:
    """Those that fit into `MOST_SET_ASIDE` pairs in the order of their hash, and all others."""
    kept, others, room = [], [], MOST_SET_ASIDE
    for group in sorted(groups, key=fraction_of):
        if len(group) <= room:
            kept.append(group)
            room -= len(group)
        else:
            others.append(group)
    return kept, others


def _once(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """The first pair of each source."""
    first: dict[str, Pair] = {}
    for pair in pairs:
        first.setdefault(same_sentence(pair.source), pair)
    return tuple(first.values())


def _in_order(part: Iterable[Pair], pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pairs of a part in the order of the text, each as often as it stands there."""
    chosen = set(part)
    return tuple(pair for pair in pairs if pair in chosen)


def _checked(split: Split, name: str) -> Split:
    if not (split.train and split.valid and split.held_out):
        raise TextError(f"{name}: every part of the split must have a pair, got {split}")
    return split
