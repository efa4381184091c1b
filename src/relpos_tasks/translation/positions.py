"""The position schemes of a comparison by name: Shaw's also by its clipping distance and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..models.positions import POSITIONS

__all__ = [
    "ABLATION",
    "CLIPPED",
    "CLIPPED_NAMES",
    "NAMES",
    "distances",
    "is_relative",
    "position_options",
    "title_of",
    "titles_of",
]

# Every scheme that both an encoder and a decoder have; others are compared to the first.
NAMES = [
    "sinusoidal",
    *(n for n, scheme in POSITIONS.items() if not scheme.causal_only and n != "sinusoidal"),
]
# The ablations of Shaw et al. 2018: k, and which of the two tables there are.
CLIPPED = r"shaw-(0|[1-9]\d{0,3})(?:-(keys|values))?"
CLIPPED_NAMES = "shaw-K, shaw-K-keys, shaw-K-values"
# What Shaw et al. compare in tables 2 and 3; others are compared to the first.
ABLATION = (
    "shaw-16",
    "shaw-0",
    "shaw-1",
    "shaw-2",
    "shaw-4",
    "shaw-16-keys",
    "shaw-16-values",
)


def position_options(name: str) -> dict[str, Any]:
    """What `EncoderDecoderConfig` takes for a name.

    Args:
        name: one of `NAMES`, or as `CLIPPED` has it.

    Raises:
        ValueError: if there is no such name.

    >>> position_options("shaw-16-keys")["max_distance"], position_options("rotary")
    (16, {'position': 'rotary'})
    """
    if name in NAMES:
        return {"position": name}
    distance, table = _clipped(name)
    return {
        "position": "shaw",
        "max_distance": distance,
        "relative_keys": table != "values",
        "relative_values": table != "keys",
    }


def title_of(name: str) -> str:
    """A scheme for tables and figures.

    Args:
        name: one of `NAMES`, or as `CLIPPED` has it.

    Raises:
        ValueError: if there is no such name.

    >>> title_of("shaw-16"), title_of("shaw-4-values")
    ('Shaw, k = 16', 'Shaw, k = 4, values alone')
    """
    if name in NAMES:
        return POSITIONS[name].title
    distance, table = _clipped(name)
    return f"Shaw, k = {distance}" + (f", {table} alone" if table else "")


def titles_of(names: Iterable[str]) -> str:
    """Several schemes in a sentence.

    Args:
        names: each one of `NAMES`, or as `CLIPPED` has it.

    Raises:
        ValueError: if there is no such name.

    >>> titles_of(["sinusoidal", "shaw-16"])
    'sinusoidal; Shaw, k = 16'
    """
    # Some titles have commas.
    return "; ".join(map(title_of, names))


def is_relative(name: str) -> bool:
    """Whether a scheme tells how far two tokens are apart.

    Args:
        name: one of `NAMES`, or as `CLIPPED` has it.

    Raises:
        ValueError: if there is no such name.

    >>> is_relative("shaw-0"), is_relative("shaw-1"), is_relative("sinusoidal")
    (False, True, False)
    """
    return POSITIONS[name].relative if name in NAMES else _clipped(name)[0] > 0


def distances(names: list[str]) -> dict[int, str]:
    """The clipping distances among some names, with both tables, rising.

    Args:
        names: each one of `NAMES`, or as `CLIPPED` has it.

    >>> distances(["shaw-4", "none", "shaw-0", "shaw-4-keys"])
    {0: 'shaw-0', 4: 'shaw-4'}
    """
    found = {}
    for name in names:
        if name not in NAMES and _clipped(name)[1] is None:
            found[_clipped(name)[0]] = name
    return dict(sorted(found.items()))


def _clipped(name: str) -> tuple[int, str | None]:
    match = re.fullmatch(CLIPPED, name)
    if match is None:
        raise ValueError(
            f"position: must be one of {', '.join(NAMES)}, {CLIPPED_NAMES}, got {name!r}"
        )
    return int(match[1]), match[2]
