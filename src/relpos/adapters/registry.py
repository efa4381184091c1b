"""Which classes of which libraries are adapted, and by what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version

from torch import nn

from .adapted import Adapted
from .known_classes import KNOWN_CLASSES

__all__ = ["Family", "adaptation_of", "families", "register"]


@dataclass(frozen=True)
class Family:
    """The adapted classes of one model.

    Args:
        module: that defines the classes.
        classes: by the name of each, its adaptation as `file:class` below `adapters/adaptations`.
    """

    module: str
    classes: dict[str, str]

    @property
    def schemes(self) -> dict[str, str]:
        """By the name of each class, what the report says of it; imports the adaptations."""
        return {name: _adaptation(self.module, path).scheme for name, path in self.classes.items()}


_FAMILIES = {name: Family(module, classes) for name, (module, classes) in KNOWN_CLASSES.items()}

# The first transformers whose classes these adaptations read.
_TRANSFORMERS = (5, 20)

_OWN: dict[type[nn.Module], type[Adapted]] = {}


def families() -> dict[str, Family]:
    """The families by name.

    >>> families()["t5"].schemes
    {'T5Attention': 'T5 bias'}
    """
    return dict(_FAMILIES)


def register(original: type[nn.Module], adaptation: type[Adapted]) -> None:
    """Have `adapt` replace the methods of one more class.

    Args:
        original: of any library.
        adaptation: what replaces its methods.

    Raises:
        TypeError: if one is no class of its kind.
    """
    for name, cls, base in (("original", original, nn.Module), ("adaptation", adaptation, Adapted)):
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise TypeError(f"register: {name} must be a subclass of {base.__name__}, got {cls!r}")
    _OWN[original] = adaptation


def adaptation_of(cls: type) -> type[Adapted] | None:
    """What replaces the methods of a class, or None; subclasses are other classes.

    Args:
        cls: of a module, or a base of one.

    Raises:
        ValueError: if it is of a transformers whose classes have other methods.
    """
    path = _paths().get((cls.__module__, cls.__qualname__))
    return _OWN.get(cls) or (None if path is None else _adaptation(cls.__module__, path))


def _check_transformers() -> None:
    found = version("transformers")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < _TRANSFORMERS:
        least = ".".join(map(str, _TRANSFORMERS))
        raise ValueError(f"adapt: transformers must be {least} or newer, got {found}")


@cache
def _paths() -> dict[tuple[str, str], str]:
    return {
        (family.module, name): path
        for family in _FAMILIES.values()
        for name, path in family.classes.items()
    }


def _adaptation(module: str, path: str) -> type[Adapted]:
    if module.startswith("transformers."):
        _check_transformers()
    file, _, name = path.partition(":")
    return getattr(import_module(f".adaptations.{file}", __package__), name)
