"""What the programs check of their options before they measure anything."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

__all__ = ["check_out", "check_part"]


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


def check_out(parser: argparse.ArgumentParser, out: Path) -> None:
    """End the program where `--out` is no place for a file, or holds one that is no result.

    Args:
        parser: words the error.
        out: where the result is to go.
    """
    if out.is_dir():
        parser.error(f"argument --out: must be a file, got the folder {out}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: must be in a folder that can be made, got {out}: {error}")
    if out.exists():
        # A device may have no end.
        if not out.is_file():
            parser.error(f"argument --out: must be a file, got the device or pipe {out}")
        try:
            result = json.loads(out.read_text())
        except (OSError, ValueError):
            result = None
        if not isinstance(result, dict):
            parser.error(f"argument --out: must be new or hold an older result, got {out}")
