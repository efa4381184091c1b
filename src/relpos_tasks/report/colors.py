"""The colours of what is compared, the same in every figure and table of a report."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BASELINE", "series_colors"]

# They differ in lightness too, for readers who tell few hues apart.
_SERIES = ("#0b6e6e", "#c2571a", "#6a4c93", "#8d99a6", "#7a5c00", "#1f4e9c")
BASELINE = "#98a2b0"


def series_colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, by its position; the seventh has that of the first again.

    Args:
        names: of what is compared.

    >>> series_colors(["relative", "absolute"])
    {'relative': '#0b6e6e', 'absolute': '#c2571a'}
    """
    return {name: _SERIES[index % len(_SERIES)] for index, name in enumerate(names)}
