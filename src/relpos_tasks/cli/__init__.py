"""The `relpos` command, light to import: what is slow is imported by the command that needs it."""

from .entry import main

__all__ = ["main"]
