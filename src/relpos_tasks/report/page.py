"""One self-contained HTML page: every figure, score and sound lies inside it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..files import write_text

__all__ = ["Chart", "Report", "Row", "data_uri", "verdict", "write_report"]


@dataclass(frozen=True)
class Row:
    """A line of the table of held-out nats; None where there is no such number."""

    name: str
    nats: float
    parameters: int | None = None
    steps: int | None = None
    seconds: float | None = None
    key: str = "counting"


@dataclass(frozen=True)
class Chart:
    """A figure as SVG, what it shows in a word or two, how to read it, and whether it is small."""

    svg: str
    alt: str
    caption: str
    small: bool = False


@dataclass(frozen=True)
class Report:
    """All that the page says.

    Args:
        title: of the page.
        summary: what was done, in three sentences.
        good: whether the relative model beat all others.
        verdict: what came out, in words.
        rows: the table, the models first.
        scores: for wide and for narrow screens, pages of SVG.
        wav: the sound.
        midi: the file to download.
        chorale: what the score shows.
        lengths: nats per token by window for each model.
        lengths_note: on which pieces, or why there is no such test.
        lengths_chart: the same as a figure; None where there is no such test.
        curves: the learning curves.
        learned: what the rows learned.
        protocol: how it was measured, as sentences.
        machine: name and value.
    """

    title: str
    summary: str
    good: bool
    verdict: list[str]
    rows: list[Row]
    scores: tuple[list[str], list[str]]
    wav: bytes
    midi: bytes
    chorale: str
    lengths: dict[str, dict[int, float]]
    lengths_note: str
    lengths_chart: Chart | None
    curves: Chart
    learned: list[Chart]
    protocol: list[str]
    machine: dict[str, str] = field(default_factory=dict)


def write_report(path: str | Path, report: Report) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        report: what it says.
    """
    environment = Environment(
        loader=PackageLoader("relpos_tasks", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = lambda text: data_uri(text.encode(), "image/svg+xml")
    environment.filters["wav"] = lambda sound: data_uri(sound, "audio/wav")
    environment.filters["midi"] = lambda file: data_uri(file, "audio/midi")
    environment.filters["nats"] = lambda number: f"{number:.3f}"
    environment.filters["time"] = _time
    worst = max(row.nats for row in report.rows)
    write_text(path, environment.get_template("report.html").render(report=report, worst=worst))


def data_uri(content: bytes, kind: str) -> Markup:
    """The content as an address that needs no file.

    Args:
        content: bytes.
        kind: its media type.
    """
    return Markup(f"data:{kind};base64,{base64.b64encode(content).decode()}")


def verdict(relative: float, absolute: float, counting: dict[str, float]) -> list[str]:
    """What the held-out numbers say, in sentences.

    Args:
        relative: nats per token of the relative model.
        absolute: nats per token of the absolute one.
        counting: nats per token of each baseline.

    >>> verdict(0.5, 0.6, {"previous pitch": 0.9})[1]
    'It beats the best counting baseline (previous pitch, 0.900) too.'
    """
    if relative < absolute:
        first = "The relative model beats the absolute one"
    elif relative > absolute:
        first = "The relative model does not beat the absolute one"
    else:
        first = "The relative and the absolute model are equal"
    sentences = [
        f"{first}: {relative:.3f} against {absolute:.3f} nats per token on held-out pieces."
    ]
    name, best = min(counting.items(), key=lambda item: item[1])
    if relative < best:
        sentences.append(f"It beats the best counting baseline ({name}, {best:.3f}) too.")
    else:
        sentences.append(
            f"It does not beat the best counting baseline ({name}, {best:.3f}): "
            "too little training, or a model too small."
        )
    return sentences


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
