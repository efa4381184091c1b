"""The kinds of pairs, as a checkpoint names them."""

from __future__ import annotations

__all__ = ["CHORALES", "TEXT"]

TEXT = "text"
CHORALES = "chorales"
