"""What the programs check of their options before they measure anything."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

__all__ = ["check_part"]


def check_part(
    parser: argparse.ArgumentParser, only: list[str] | None, known: Iterable[str], out: Path | None
) -> None:
    """End the program where `--only` names nothing, or would write a part over the whole result.

    Args:
        parser: words the error.
        only: names of settings; None for all.
        known: the names that there are.
        out: where the result is to go; None where the whole one lies.
    """
    names = list(dict.fromkeys(known))
    unknown = [name for name in only or () if name not in names]
    if unknown:
        parser.error(f"--only: must be among {names}, got {unknown}")
    if only and out is None:
        parser.error("--out: must be given with --only, whose result is a part")
