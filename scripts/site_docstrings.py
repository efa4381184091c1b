"""Docstrings as the documentation site shows them (an extension of griffe, in mkdocs.yml)."""

from __future__ import annotations

import re

from griffe import Extension, Object

# From the first `>>>` after an empty line to the next one, or the end.
DOCTEST = re.compile(r"(?:^|(?<=\n\n))>>> .*?(?=\n\n|\Z)", flags=re.DOTALL)


class Doctests(Extension):
    """Doctests as code; Markdown takes `>>>` for quotations."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Each docstring as it is read."""
        if obj.docstring:
            obj.docstring.value = fence_doctests(obj.docstring.value)


def fence_doctests(docstring: str) -> str:
    """A docstring with each of its doctests between fences."""
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
