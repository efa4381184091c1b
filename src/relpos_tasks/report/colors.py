"""The colours and lines of what is compared, the same in every figure and table of a report."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BASELINE", "series_colors", "series_lines"]

# They differ in lightness too, for readers who tell few hues apart. Grey is the baselines' alone.
_SERIES = ("#0b6e6e", "#c2571a", "#6a4c93", "#d16ba5", "#7a5c00", "#1f4e9c")
BASELINE = "#98a2b0"
_LINES = ("-", "--", ":")


def series_colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, by its position; the seventh has that of the first again.

    Args:
        names: of what is compared.

    >>> series_colors(["relative", "absolute"])
    {'relative': '#0b6e6e', 'absolute': '#c2571a'}
    """
    return {name: _SERIES[index % len(_SERIES)] for index, name in enumerate(names)}


def series_lines(names: Iterable[str]) -> dict[str, str]:
    """A line for each name, as Matplotlib has it: names of one colour have different ones.

    Args:
        names: of what is compared; the nineteenth looks like the first again.

    >>> series_lines("abcdefg")["a"], series_lines("abcdefg")["g"]
    ('-', '--')
    """
    return {name: _LINES[index // len(_SERIES) % len(_LINES)] for index, name in enumerate(names)}
