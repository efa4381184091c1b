"""Pairs of sentences, and which of them say the same thing.

A sentence may stand in several pairs: in Tatoeba one English sentence has many German ones, and the
other way round. A model that was trained on one of these pairs has seen a part of the others, so
pairs are connected when their sources or their targets are equal but for case and punctuation, and
what is connected, also by way of other pairs, is one group.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Pair", "connected_groups", "digest_of", "fraction_of", "same_sentence"]


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def same_sentence(text: str) -> str:
    """What is equal for sentences that differ in case and punctuation alone.

    Args:
        text: a sentence; one without letters and digits stands for itself.

    >>> same_sentence("Go  on, Tom!")
    'go on tom'
    """
    folded = text.casefold()
    # `\w` leaves out the marks that are a part of letters in many scripts.
    marks = "" if folded.isascii() else "".join(sorted(filter(_is_mark, set(folded))))
    return " ".join(re.findall(rf"\w[\w{re.escape(marks)}]*", folded)) or text


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def connected_groups(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """The pairs in groups that share no sentence with each other.

    Args:
        pairs: any pairs.

    Returns:
        Groups in the order of their first pairs, each in the order of the pairs.

    >>> one, two, three = Pair("Hi.", "Hallo!"), Pair("Hi!", "Servus."), Pair("Bye.", "Servus!")
    >>> [len(group) for group in connected_groups([one, Pair("Run!", "Lauf!"), two, three])]
    [3, 1]
    """
    leaders: dict[tuple[int, str], tuple[int, str]] = {}

    def leader(sentence: tuple[int, str]) -> tuple[int, str]:
        while (above := leaders.setdefault(sentence, sentence)) != sentence:
            # Halves the way for whoever asks next.
            leaders[sentence] = leaders[above]
            sentence = leaders[above]
        return sentence

    pairs = list(pairs)
    # The language is a part of the sentence: "Alarm" may be a word of both.
    sources = [(0, same_sentence(pair.source)) for pair in pairs]
    for source, pair in zip(sources, pairs, strict=True):
        leaders[leader(source)] = leader((1, same_sentence(pair.target)))
    groups: dict[tuple[int, str], list[Pair]] = {}
    for source, pair in zip(sources, pairs, strict=True):
        groups.setdefault(leader(source), []).append(pair)
    return list(groups.values())


def fraction_of(group: Iterable[Pair]) -> float:
    """A number in [0, 1) that depends on a group's sentences alone, not on their order.

    Args:
        group: at least one pair.
    """
    first = min(same_sentence(pair.source) for pair in group)
    digest = hashlib.blake2b(first.encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


def digest_of(parts: Iterable[Sequence[Pair]]) -> str:
    """What is another one for other pairs, so that a run cannot go on with them.

    Args:
        parts: of a split, in their order.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(f"{len(part)}\n".encode())
        for pair in part:
            # A sentence is on one line.
            digest.update(f"{pair.source}\n{pair.target}\n".encode())
    return digest.hexdigest()
