"""The text that a run is about: pairs in three parts, and the subwords learned from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .split import Split, split_by_length, split_texts
from .subwords import SUBWORDS, Subwords, learn_subwords
from .texts import read_texts

__all__ = ["Source", "read_source"]


@dataclass(frozen=True, eq=False)
class Source:
    """Pairs in three parts, and the subwords of both languages.

    Args:
        name: of the folder or file.
        languages: translated from, and to.
        digest: of the pairs, so that a run cannot go on with others.
        split: the pairs.
        subwords: learned from the training pairs alone.
    """

    name: str
    languages: tuple[str, str]
    digest: str
    split: Split
    subwords: Subwords

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about its data."""
        return {
            "name": self.name,
            "digest": self.digest,
            "languages": list(self.languages),
            "split": str(self.split),
            "subwords": self.subwords.about(),
        }


def read_source(
    path: str | Path | None,
    *,
    source: str | None = None,
    target: str | None = None,
    vocabulary: int = SUBWORDS,
    by_length: bool = False,
    largest: int | None = None,
) -> Source:
    """The pairs to train and to measure on.

    Args:
        path: a folder or a file, as `read_texts` has it.
        source: the language to translate from; None finds it.
        target: the language to translate to; None finds it.
        vocabulary: how many subwords there may be.
        by_length: True trains on short sentences alone, to be measured on longer ones.
        largest: how many long sentences that measures at most; None takes all.

    Raises:
        TextError: if the text cannot be used, or a part of the split is empty.
        ValueError: if the vocabulary is too small.
    """
    texts = read_texts(path, source=source, target=target)
    split = split_by_length(texts, largest=largest) if by_length else split_texts(texts)
    subwords = learn_subwords((text for pair in split.train for text in pair), size=vocabulary)
    return Source(texts.name, texts.languages, split.digest, split, subwords)
