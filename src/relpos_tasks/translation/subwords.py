"""Subwords of both languages together: byte-level byte pair encoding, exact for any text.

Sennrich et al. (2016) merge the most frequent pair of symbols again and again; here the symbols
are the bytes of UTF-8 (Radford et al. 2019), so that no character is unknown and what is encoded
and decoded is the text itself. A space belongs to the word after it, and one is put before the
first word and taken away again, so that a word is the same subword wherever it stands. Merges are
learned and applied by `tokenizers`, within words, numbers and runs of punctuation.

Ids 0, 1 and 2 are padding, begin and end; no text becomes one of them. A subword seen in fewer than
two places of the training text is not learned: a small text has a smaller vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

__all__ = [
    "BEGIN",
    "END",
    "LONGEST_LINE",
    "PADDING",
    "SUBWORDS",
    "Subwords",
    "learn_subwords",
]

PADDING, BEGIN, END = range(3)
_SPECIAL = 3
# Of a line to translate: a longer one is a text that wants to be parted into sentences, or no text.
LONGEST_LINE = 1_000
# The default size of a vocabulary.
SUBWORDS = 4_000
_LONG_WORD = re.compile(r"\S{1001,}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


class Subwords:
    """A vocabulary of subwords, from text to ids and back.

    Args:
        merges: pairs of subwords as `"left right"`, the first learned first; bytes are written as
            the characters that `tokenizers` has for them.

    Raises:
        ValueError: if a merge is no pair of subwords that are there before it.

    >>> learned = learn_subwords(["ein Mann und ein Hund"], size=262)
    >>> learned.size, learned.about()
    (262, {'size': 262, 'merges': ['e i', 'n d', 'u nd']})
    >>> learned.decode(learned.encode("ein Wundermann €"))
    'ein Wundermann €'
    """

    def __init__(self, merges: Sequence[str]) -> None:
        self.merges = tuple(merges)
        vocabulary = {byte: index for index, byte in enumerate(_BYTES)}
        parts = []
        for number, merge in enumerate(self.merges):
            pair = tuple(merge.split(" ")) if isinstance(merge, str) else ()
            if len(pair) != 2 or not all(part in vocabulary for part in pair):
                raise ValueError(
                    f"Subwords: merges[{number}] must be two known subwords with a space between, "
                    f"got {str(merge)[:40]!r}"
                )
            # Two ways to one subword are one subword.
            vocabulary.setdefault("".join(pair), len(vocabulary))
            parts.append(pair)
        self._pieces = [*vocabulary]
        self._tokenizer = _tokenizer(models.BPE(vocab=vocabulary, merges=parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subwords) and self.merges == other.merges

    def __hash__(self) -> int:
        return hash(self.merges)

    def __repr__(self) -> str:
        return f"Subwords({self.size})"

    @property
    def size(self) -> int:
        """How many ids there are, padding, begin and end among them."""
        return _SPECIAL + len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without begin and end.

        Args:
            text: any; the ids of an empty one are none.

        Raises:
            ValueError: if it holds half a character (a surrogate), which no text file can.
        """
        return self.encode_all([text])[0]

    def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each text; faster than one after the other.

        Args:
            texts: as for `encode`.
        """
        texts = list(texts)
        try:
            encoded = self._tokenizer.encode_batch([" " + text for text in texts])
        except (TypeError, UnicodeEncodeError) as error:
            wrong = [one for one in texts if not isinstance(one, str) or _SURROGATE.search(one)]
            got = "" if not wrong else f", got {str(wrong[0])[:40]!r}"
            raise ValueError(
                f"Subwords: text must be Unicode without lone surrogates{got}"
            ) from error
        return [
            [index + _SPECIAL for index in one.ids] if text else []
            for one, text in zip(encoded, texts, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; padding, begin and end are passed over.

        Args:
            ids: any; bytes that are no character become U+FFFD.
        """
        pieces = [index - _SPECIAL for index in ids if index >= _SPECIAL]
        # A model may well begin without the space.
        return self._tokenizer.decode(pieces, skip_special_tokens=False).removeprefix(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for, for the axes of a figure; `▁` is the space before a word.

        Args:
            ids: any.
        """
        return [
            ("<pad>", "<begin>", "<end>")[index]
            if index < _SPECIAL
            else self._tokenizer.decode([index - _SPECIAL]).replace(" ", "▁")
            for index in ids
        ]

    def about(self) -> dict[str, Any]:
        """What a checkpoint says, from which `from_about` makes the same subwords."""
        return {"size": self.size, "merges": list(self.merges)}

    @classmethod
    def from_about(cls, about: Any) -> Subwords:
        """The subwords of a checkpoint.

        Args:
            about: what `about` returned.

        Raises:
            ValueError: if it is something else, or contradicts itself.
        """
        if not isinstance(about, dict) or not isinstance(about.get("merges"), list):
            raise ValueError(f"Subwords: must be an object with 'merges', got {str(about)[:40]}")
        found = cls(about["merges"])
        if about.get("size") != found.size:
            raise ValueError(
                f"Subwords: size must be the {found.size} of the merges, got {about.get('size')}"
            )
        return found


def learn_subwords(texts: Iterable[str], *, size: int = SUBWORDS) -> Subwords:
    """Subwords of some sentences, the same whatever their order.

    Of what has no space for more than 1,000 characters, which is no word, nothing is learned.

    Args:
        texts: both languages of the training pairs.
        size: how many ids at most, the three special ones and the 256 bytes among them.

    Raises:
        ValueError: if there is no room for all bytes.
    """
    least = _SPECIAL + len(_BYTES)
    if size < least:
        raise ValueError(
            f"learn_subwords: size must be at least {least}, the bytes and padding, begin and end, "
            f"got {size}"
        )
    tokenizer = _tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size - _SPECIAL,
        min_frequency=2,
        initial_alphabet=_BYTES,
        show_progress=False,
    )
    # The time of a word grows with the square of its length.
    texts = (_LONG_WORD.sub(" ", text) for text in texts)
    tokenizer.train_from_iterator((" " + text for text in texts), trainer)
    return Subwords([" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])


def _tokenizer(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
