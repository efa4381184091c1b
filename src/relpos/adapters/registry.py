"""Which classes of which libraries are adapted, and by what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import cast as typed

from torch import nn

from .adapted import Adapted
from .known_classes import KNOWN_CLASSES

__all__ = ["Family", "adaptation_of", "adaptations", "families", "missing_copies", "register",
           "unregistered_beside"]  # fmt: skip


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
# Of these, the known class that one is a copy of, as `family.Class`.
_LIKE: dict[type[nn.Module], str] = {}


def families() -> dict[str, Family]:
    """The families by name.

    >>> families()["t5"].schemes
    {'T5Attention': 'T5 bias'}
    """
    return dict(_FAMILIES)


def register(
    original: type[nn.Module], adaptation: type[Adapted] | None = None, *, like: str | None = None
) -> None:
    """Have `adapt` replace the methods of one more class: by an adaptation, or as a known class.

    Many models hold a copy of another's file. `register(their_swin.WindowAttention,
    like="timm_swin.WindowAttention")` has it adapted as the class that it copies; so may a
    subclass that changes nothing of the attention be. Of classes that only act together (an
    attention and the encoder that makes its masks), each copy in one module is to be registered.

    Args:
        original: of any library.
        adaptation: what replaces its methods; not given if `like` is.
        like: `family.Class`, one of `families`, of which `original` computes the same from
            attributes of the same names.

    Raises:
        TypeError: if one is no class of its kind (`original` a subclass of `nn.Module` that is not
            adapted yet), or both or none of the latter two are given.
        ValueError: if `like` is no class of a family, or one of transformers, which is older than
            5.20, or if `original` is a known class and `like` another one. (`like` itself undoes
            an earlier registration.)
    """
    if (adaptation is None) == (like is None):
        raise TypeError(
            "register: either adaptation or like must be given, got "
            + ("neither" if like is None else "both")
        )
    found = adaptation if like is None else _adaptation_like(like)
    for name, cls, base in (("original", original, nn.Module), ("adaptation", found, Adapted)):
        if not (isinstance(cls, type) and issubclass(cls, base)):
            kind = "nn.Module" if base is nn.Module else base.__name__
            raise TypeError(f"register: {name} must be a subclass of {kind}, got {cls!r}")
    of_torch = original.__module__.partition(".")[0] == "torch"
    if original is nn.Module or (of_torch and like) or issubclass(original, Adapted):
        raise TypeError(
            "register: original must be a class of attention as its library has it, "
            f"got {original!r}"
        )
    known = _known(original)
    if like is not None and known not in (None, like):
        raise ValueError(f"register: original must be no known class, got {known} with {like=}")
    _OWN.pop(original, None)
    _LIKE.pop(original, None)
    if like is not None and known == like:
        return
    _OWN[original] = typed(type[Adapted], found)
    if like is not None:
        _LIKE[original] = like


def _adaptation_like(like: str) -> type[Adapted]:
    """The adaptation that is named `family.Class`."""
    family, _, name = like.partition(".") if isinstance(like, str) else ("", "", "")
    known = _FAMILIES.get(family)
    if known is None or name not in known.classes:
        names = [f"{key}.{each}" for key, one in _FAMILIES.items() for each in one.classes]
        near = get_close_matches(str(like), names, n=1)
        if known is not None and not name:
            near = [f"{family}.{next(iter(known.classes))}"]
        raise ValueError(
            "register: like must be family.Class, of relpos.adapters.families()"
            + (f", such as {near[0]}" if near else "")
            + f", got {like!r}"
        )
    return _adaptation(known.module, known.classes[name], "register")


def adaptation_of(cls: type) -> type[Adapted] | None:
    """What replaces the methods of a class, or None; subclasses are other classes.

    Args:
        cls: of a module, or a base of one.

    Raises:
        ValueError: if it is of a transformers whose classes have other methods.
    """
    path = _paths().get((cls.__module__, cls.__qualname__))
    return _OWN.get(cls) or (None if path is None else _adaptation(cls.__module__, path))


def adaptations() -> Iterator[tuple[str, type[Adapted]]]:
    """The name `family.Class` of each known class, and its adaptation.

    First come those after which an adaptation's file is named. Where transformers is too old, its
    own are left out, and where it is missing, so are those that import it.
    """

    def is_named_after(family: str, file: str) -> bool:
        library = _FAMILIES[family].module.partition(".")[0]
        return file.partition(".")[0] in (family, library)

    left_out = _wrong_transformers() is not None
    known = [
        (key, *row)
        for key, family in _FAMILIES.items()
        if not (left_out and _is_of_transformers(family.module))
        for row in family.classes.items()
    ]
    known.sort(key=lambda row: not is_named_after(row[0], row[2].partition(":")[0]))
    for family, name, path in known:
        try:
            adaptation = _load(path)
        except ImportError:
            continue
        yield f"{family}.{name}", adaptation


def missing_copies(cls: type[nn.Module]) -> list[str]:
    """The known classes, as `family.Class`, whose copies a registered copy does not act without.

    Args:
        cls: of a module.
    """
    if cls not in _LIKE:
        return []
    name = _LIKE[cls].partition(".")[0]
    family = _FAMILIES[name]
    if not _OWN[cls].together or any(base.__module__ == family.module for base in cls.__mro__):
        return []
    there = {like for each, like in _LIKE.items() if each.__module__ == cls.__module__}
    together = (
        f"{name}.{each}"
        for each, path in family.classes.items()
        if _adaptation(family.module, path).together
    )
    return [each for each in together if each not in there]


def unregistered_beside(cls: type[nn.Module]) -> list[str]:
    """The other classes of the family of a registered copy, as `family.Class`, without copies.

    Args:
        cls: of a module.
    """
    if cls not in _LIKE:
        return []
    name = _LIKE[cls].partition(".")[0]
    there = {like for each, like in _LIKE.items() if each.__module__ == cls.__module__}
    return [each for own in _FAMILIES[name].classes if (each := f"{name}.{own}") not in there]


def _known(cls: type) -> str | None:
    """A known class as `family.Class`; None if it is none."""
    names = (name for name, family in _FAMILIES.items() if family.module == cls.__module__)
    found = (f"{name}.{cls.__qualname__}" for name in names)
    return next(found, None) if (cls.__module__, cls.__qualname__) in _paths() else None


def _is_of_transformers(module: str) -> bool:
    return module.startswith("transformers.")


def _wrong_transformers() -> str | None:
    """What is wrong with the transformers that is installed; None if nothing is."""
    found = _installed_transformers()
    if tuple(map(int, re.findall(r"\d+", found)[:2])) >= _TRANSFORMERS:
        return None
    least = ".".join(map(str, _TRANSFORMERS))
    return f"transformers must be {least} or newer, got {found}"


@cache
def _installed_transformers() -> str:
    """Its version, or "none". To look for it takes milliseconds."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return "none"


@cache
def _paths() -> dict[tuple[str, str], str]:
    return {
        (family.module, name): path
        for family in _FAMILIES.values()
        for name, path in family.classes.items()
    }


def _adaptation(module: str, path: str, caller: str = "adapt") -> type[Adapted]:
    """The adaptation of a module's class, if its transformers is new enough."""
    if _is_of_transformers(module) and (wrong := _wrong_transformers()) is not None:
        raise ValueError(f"{caller}: {wrong}")
    return _load(path)


@cache
def _load(path: str) -> type[Adapted]:
    """The adaptation at `file:class`."""
    file, _, name = path.partition(":")
    return getattr(import_module(f".adaptations.{file}", __package__), name)
