"""What the page on sentences adds to text, tables and figures: sentences and their translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["Sample", "SamplesBlock"]


@dataclass(frozen=True)
class Sample:
    """A sentence and what became of it.

    Args:
        title: which sentence it is.
        texts: by what they are, such as `"source"` or the name of a system.
    """

    title: str
    texts: Mapping[str, str]


@dataclass(frozen=True)
class SamplesBlock:
    """Sentences with their translations; each text runs in the direction of its letters.

    Their style is that of `translation/report.html`.
    """

    samples: Sequence[Sample]
    template: ClassVar[str] = "translation/samples.html"
