"""Translation: parallel text in, tokens for an encoder-decoder, translations and scores out.

`scores` (sacrebleu), `batches` and `figures` are imported by their full names.
"""

from .pairs import Pair
from .source import Source, read_source
from .split import Split, split_by_length, split_texts
from .subwords import Subwords, learn_subwords
from .texts import TextError, Texts, read_texts

__all__ = [
    "Pair",
    "Source",
    "Split",
    "Subwords",
    "TextError",
    "Texts",
    "learn_subwords",
    "read_source",
    "read_texts",
    "split_by_length",
    "split_texts",
]
