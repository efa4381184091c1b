"""The kinds of music, as checkpoints call them."""

from __future__ import annotations

__all__ = ["CHORALES", "PERFORMANCES"]

CHORALES = "chorales"
PERFORMANCES = "performances"
