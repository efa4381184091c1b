"""What a report is made of: sections, each a heading and blocks.

A block is a frozen dataclass with a Jinja template of its own. The blocks here serve every task; a
task that shows more, such as a score, brings a dataclass and a template in its own package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

__all__ = [
    "Block",
    "DownloadBlock",
    "FactsBlock",
    "FigureBlock",
    "ListBlock",
    "Report",
    "Section",
    "TableBlock",
    "TableRow",
    "TextBlock",
]


@runtime_checkable
class Block(Protocol):
    """Anything with a template below `relpos_tasks`, which sees the block as `block`."""

    template: ClassVar[str]


@dataclass(frozen=True)
class TextBlock:
    """A paragraph."""

    text: str
    template: ClassVar[str] = "report/text.html"


@dataclass(frozen=True)
class ListBlock:
    """Sentences, each with a bullet."""

    items: Sequence[str]
    template: ClassVar[str] = "report/list.html"


@dataclass(frozen=True)
class FactsBlock:
    """Names and values, such as those of the machine."""

    facts: Mapping[str, str]
    template: ClassVar[str] = "report/facts.html"


@dataclass(frozen=True)
class FigureBlock:
    """A figure.

    Args:
        svg: the figure.
        alt: what it shows, in a word or two.
        caption: how to read it.
        small: whether it is drawn at half the width.
    """

    svg: str
    alt: str
    caption: str
    small: bool = False
    template: ClassVar[str] = "report/figure.html"


@dataclass(frozen=True)
class DownloadBlock:
    """A button that saves a file, which lies inside the page.

    Args:
        label: on the button.
        name: of the file.
        content: of the file.
        media_type: such as `"audio/midi"`.
    """

    label: str
    name: str
    content: bytes
    media_type: str
    template: ClassVar[str] = "report/download.html"


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Args:
        cells: texts, one for each column; None where there is no such value.
        bar: length of the row's bar, in 0..1; None draws none.
        color: of the bar, as CSS has it.
        strong: whether the first two cells are in bold.
    """

    cells: Sequence[str | None]
    bar: float | None = None
    color: str | None = None
    strong: bool = False


@dataclass(frozen=True)
class TableBlock:
    """A table; on a narrow screen each row is a small list with the columns' names.

    Args:
        columns: headings. The first column holds names, the others numbers.
        rows: each with as many cells as there are columns.
        note: below the table; "" for none.

    Raises:
        ValueError: if a row has more or fewer cells than there are columns.
    """

    columns: Sequence[str]
    rows: Sequence[TableRow]
    note: str = ""
    template: ClassVar[str] = "report/table.html"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"TableBlock: rows must have {len(self.columns)} cells, got {len(row.cells)}"
                )

    @property
    def has_bars(self) -> bool:
        """Whether any row has a bar."""
        return any(row.bar is not None for row in self.rows)


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        name: by which addresses name it, as in `report.html#lengths`.
        title: the heading.
        blocks: what stands below it.
        files: what lies beside the page because of it, by its path in the folder of the run.
    """

    name: str
    title: str
    blocks: Sequence[Block]
    files: Mapping[Path, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All that the page says.

    Args:
        title: of the page.
        summary: what was done, in three sentences.
        verdict: what came out, as sentences.
        good: whether that is what one hoped for; the verdict is coloured by it.
        sections: in their order.
        template: of the page: a task's own extends `report/report.html`.
    """

    title: str
    summary: str
    verdict: Sequence[str]
    good: bool
    sections: Sequence[Section] = field(default_factory=tuple)
    template: str = "report/report.html"
