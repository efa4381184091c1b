"""What a run is about: for text pairs in three parts, and the subwords learned from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..progress import show_activity
from .kinds import TEXT
from .pairs import Pair
from .settings import TextSettings
from .split import Split, split_by_length, split_texts
from .subwords import LONGEST_LINE, PADDING, SUBWORDS, Subwords, learn_subwords
from .texts import TextError, read_texts

if TYPE_CHECKING:
    from .batches import Batch, EncodedPairs, TranslationData

__all__ = ["Source", "TranslationSource", "read_source"]


@runtime_checkable
class TranslationSource(Protocol):
    """Pairs of one kind in three parts, with all that training and measuring ask of them."""

    @property
    def name(self) -> str:
        """Of the file or the folder, or `"chorales"`."""
        ...

    @property
    def digest(self) -> str:
        """Of the pairs, so that a run cannot go on with others."""
        ...

    @property
    def split(self) -> Any:
        """The pairs in three parts, as a line by `str`."""
        ...

    @property
    def tokens(self) -> int:
        """Of the vocabulary, which both sides share."""
        ...

    @property
    def tied(self) -> bool:
        """Whether both sides and the output are to share one matrix of embeddings."""
        ...

    @property
    def padding(self) -> int:
        """The token behind the end of a source."""
        ...

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about its data."""
        ...

    def data(self, settings: Any) -> Any:
        """Lightning's data module: the batches to train and to validate on."""
        ...

    def held_out(self, settings: Any) -> Iterable[Batch]:
        """Batches in which every held-out target token is scored once."""
        ...

    def valid(self, settings: Any) -> Iterable[Batch]:
        """Likewise of the pairs to choose settings on."""
        ...


@dataclass(frozen=True, eq=False)
class Source:
    """Pairs in three parts, and the subwords of both languages.

    Args:
        name: of the folder or file.
        languages: translated from, and to.
        digest: of the pairs, so that a run cannot go on with others.
        split: the pairs, those to watch and to measure short enough to be translated.
        subwords: learned from the training pairs alone.
    """

    name: str
    languages: tuple[str, str]
    digest: str
    split: Split
    subwords: Subwords

    @property
    def tokens(self) -> int:
        """The subwords of both languages."""
        return self.subwords.size

    @property
    def tied(self) -> bool:
        """True: both languages share their subwords, as in Vaswani et al. 2017, section 3.4."""
        return True

    @property
    def padding(self) -> int:
        """Is no subword."""
        return PADDING

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about its data."""
        return {
            "kind": TEXT,
            "name": self.name,
            "digest": self.digest,
            "languages": list(self.languages),
            "split": str(self.split),
            "subwords": self.subwords.about(),
        }

    def data(self, settings: TextSettings) -> TranslationData:
        """Batches of so many tokens.

        Args:
            settings: the sizes and the budget.

        Raises:
            TextError: if every pair to train on is too long.
            ValueError: if a pair is longer than a batch.
        """
        # Translating does without Lightning.
        from .batches import TranslationData, encode_pairs  # noqa: PLC0415

        training = settings.training
        return TranslationData(
            self.trained_on(settings),
            encode_pairs(self.split.valid, self.subwords),
            tokens=training.batch,
            steps=training.steps,
            seed=training.seed,
        )

    def trained_on(self, settings: TextSettings) -> EncodedPairs:
        """The training pairs that are not too long, the others counted.

        Args:
            settings: the length.

        Raises:
            TextError: if all are.
        """
        from .batches import encode_pairs  # noqa: PLC0415

        train = encode_pairs(self.split.train, self.subwords, longest=settings.longest)
        if not len(train):
            raise TextError(
                f"{self.name}: must have pairs of at most {settings.longest} subwords to train on, "
                f"got {train.left_out:,} longer ones"
            )
        return train

    def held_out(self, settings: TextSettings) -> Iterable[Batch]:
        """Every held-out pair once.

        Args:
            settings: the size of batches.
        """
        return self._ordered(self.split.held_out, settings)

    def valid(self, settings: TextSettings) -> Iterable[Batch]:
        """Every validation pair once.

        Args:
            settings: the size of batches.
        """
        return self._ordered(self.split.valid, settings)

    def _ordered(self, pairs: Sequence[Pair], settings: TextSettings) -> Iterable[Batch]:
        from .batches import OrderedBatches, encode_pairs  # noqa: PLC0415

        encoded = encode_pairs(pairs, self.subwords)
        return OrderedBatches(encoded, tokens=settings.training.batch)


def read_source(
    path: str | Path | None,
    *,
    source: str | None = None,
    target: str | None = None,
    vocabulary: int = SUBWORDS,
    subwords: Subwords | None = None,
    by_length: bool = False,
    largest: int | None = None,
) -> Source:
    """The pairs to train and to measure on.

    Pairs to watch or to measure with a sentence that is too long to be translated are left out and
    counted: no model should be trained before that is known.

    Args:
        path: a folder or a file, as `read_texts` has it.
        source: the language to translate from; None finds it.
        target: the language to translate to; None finds it.
        vocabulary: how many subwords there may be.
        subwords: of a model that was trained on these pairs; None learns them.
        by_length: True trains on short sentences alone, to be measured on longer ones.
        largest: how many long sentences that measures at most; None takes all.

    Raises:
        TextError: if the text cannot be used, or a part of the split has no usable pair.
        ValueError: if the vocabulary is too small.
    """
    texts = read_texts(path, source=source, target=target)
    split = split_by_length(texts, largest=largest) if by_length else split_texts(texts)
    if subwords is None:
        with show_activity("learning subwords"):
            subwords = learn_subwords(
                (text for pair in split.train for text in pair), size=vocabulary
            )
    # The digest is that of all pairs, since which are too long depends on the subwords.
    short = _translatable(split, subwords, texts.name)
    return Source(texts.name, texts.languages, split.digest, short, subwords)


def _translatable(split: Split, subwords: Subwords, name: str) -> Split:
    """Without the pairs to watch and to measure of which a sentence is too long."""

    def kept(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        columns = (subwords.encode_all(column) for column in zip(*pairs, strict=True))
        found = [max(map(len, sides)) <= LONGEST_LINE for sides in zip(*columns, strict=True)]
        if not any(found):
            raise TextError(
                f"{name}: must have a sentence of at most {LONGEST_LINE:,} subwords to watch and "
                "to measure, got longer ones alone"
            )
        return tuple(pair for pair, short in zip(pairs, found, strict=True) if short)

    valid, held_out = kept(split.valid), kept(split.held_out)
    too_long = len(split.valid) + len(split.held_out) - len(valid) - len(held_out)
    return replace(split, valid=valid, held_out=held_out, too_long=too_long)
