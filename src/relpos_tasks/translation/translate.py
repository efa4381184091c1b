"""Lines of text to their translations, in order."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from ..models.batched_search import beam_search_all
from ..models.beam_search import BeamSearch
from ..models.encoder_decoder import EncoderDecoder
from .subwords import BEGIN, END, LONGEST_LINE, PADDING, Subwords

__all__ = ["translate"]


def translate(
    model: EncoderDecoder,
    subwords: Subwords,
    lines: Sequence[str],
    *,
    beam: int = 4,
    alpha: float = 0.6,
    tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """The likeliest translation of each line, by beam search.

    Args:
        model: what was trained with these subwords.
        subwords: of both languages.
        lines: a sentence each; the translation of an empty one is empty.
        beam: hypotheses that are kept of each sentence; 1 is greedy.
        alpha: of the length penalty, at least 0.
        tokens: the most source tokens in a batch, padding and hypotheses counted.
        progress: called with the lines that are done.

    Returns:
        As many lines, none with a line break in it.

    Raises:
        ValueError: if a line has more than `LONGEST_LINE` subwords, with its number; if the
            subwords are not the model's; if a setting is out of range.
    """
    if subwords.size != model.config.target_vocabulary:
        raise ValueError(
            f"translate: subwords must be the model's {model.config.target_vocabulary}, "
            f"got {subwords.size}"
        )
    normal = [unicodedata.normalize("NFC", line).strip() for line in lines]
    encoded = subwords.encode_all(normal)
    for number, ids in enumerate(encoded, 1):
        if len(ids) > LONGEST_LINE:
            raise ValueError(
                f"translate: line {number} must have at most {LONGEST_LINE:,} subwords, got "
                f"{len(ids):,}; part it into sentences"
            )
    asked = [n for n, ids in enumerate(encoded) if ids]
    empty = len(lines) - len(asked)
    found = beam_search_all(
        model,
        [[*encoded[n], END] for n in asked],
        [BEGIN],
        BeamSearch(end=END, beam=beam, alpha=alpha),
        padding=PADDING,
        tokens=tokens,
        progress=None if progress is None else lambda done: progress(empty + done),
    )
    translations = [""] * len(lines)
    for n, hypotheses in zip(asked, found, strict=True):
        text = subwords.decode(hypotheses[0].tokens)
        # Any byte may be drawn, but one line stays one line.
        translations[n] = " ".join(re.split(r"\s*[\r\n]\s*", text)).strip()
    return translations
