"""Which languages there are, by the names of files, and which two are meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path

from langcodes import tag_distance
from langcodes.tag_parser import LanguageTagError

__all__ = ["choose_languages", "folder_languages", "is_same_language", "languages_in_name"]

# Multi30k's names: train.en.gz, val.de, test_2016_flickr.fr.gz.
_PART = re.compile(r"(train|val|valid|dev|test[\w.-]*?)\.(?!txt|tsv|csv)([a-z]{2,3})(\.gz)?")
_VALID = ("valid", "dev")
# Of langcodes: 0 between codes of one language, 1 between Norwegian and its Bokmål, and more
# between languages that those who read one merely understand too.
_NEAR = 1


def folder_languages(folder: Path) -> tuple[dict[str, dict[str, Path]], tuple[str, ...]]:
    """The files of a folder by `"train"`, `"val"`, `"test"` and language, and the languages.

    Args:
        folder: with names such as Multi30k's; of several tests the first by name is taken.

    Returns:
        The files, and the languages of all of them, English first.

    Raises:
        ValueError: if there is no training text, or a text is there twice.
    """
    files: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        if not (name := _PART.fullmatch(path.name)):
            continue
        part, language, _ = name.groups()
        part = "val" if part in _VALID else part
        if language in files.setdefault(part, {}):
            twice = files[part][language].name
            raise ValueError(f"must have each text once, got {twice} and {path.name}")
        files[part][language] = path
    if "train" not in files:
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:6]) or "an empty folder"
        raise ValueError(
            f"must have files named as train.en.gz, train.de.gz, val.en.gz, val.de.gz, got {names}"
        )
    tests = sorted(part for part in files if part.startswith("test"))
    parts = {"train": "train", "val": "val", "test": tests[0] if tests else ""}
    chosen = {part: files[name] for part, name in parts.items() if name in files}
    found = {language for part in chosen.values() for language in part}
    return chosen, tuple(sorted(found, key=lambda language: (language != "en", language)))


def languages_in_name(name: str) -> tuple[str, str] | None:
    """The languages of both columns of a file of pairs; None if its name does not say.

    manythings.org's `deu-eng.zip` has English first.

    Args:
        name: of the file.

    >>> languages_in_name("deu-eng.zip")
    ('eng', 'deu')
    """
    found = re.fullmatch(r"([a-z]{3})-eng\.(zip|txt|tsv)(\.gz)?", name)
    return ("eng", found[1]) if found else None


def choose_languages(
    found: Sequence[str], source: str | None, target: str | None
) -> tuple[str, str]:
    """The language to translate from and the one to translate to.

    Args:
        found: the languages that there are, in the order in which they are taken if none is given.
        source: as the user has it: `"de"` and `"ger"` find `"deu"` too, and the other way round;
            None takes what is left.
        target: likewise.

    Raises:
        ValueError: if there are not two, or one is given that is not there, or the choice is left
            open.

    >>> choose_languages(["eng", "deu"], "de", None)
    ('deu', 'eng')
    """
    listed = ", ".join(found)
    if len(found) < 2:
        raise ValueError(f"must have two languages, got {listed} alone")
    chosen = {}
    for option, given in (("--source", source), ("--target", target)):
        if given is None:
            continue
        if (alike := _nearest(given, found)) is None:
            raise ValueError(f"{option} must be one of {listed}, got {given!r}")
        chosen[option] = alike
    if len(set(chosen.values())) < len(chosen):
        raise ValueError(f"--source and --target must be two of {listed}, got {source!r} for both")
    if len(chosen) < 2 and len(found) > 2:
        raise ValueError(f"has {listed}: choose two of them by --source and --target")
    rest = [one for one in found if one not in chosen.values()]
    first = chosen.get("--source") or rest.pop(0)
    return first, chosen.get("--target") or rest.pop(0)


def is_same_language(one: str, other: str) -> bool:
    """Whether two codes are of one language.

    Args:
        one: of ISO 639, of two letters or three.
        other: likewise; or both any text, which is then to be the same.

    >>> is_same_language("de", "deu"), is_same_language("ger", "deu"), is_same_language("es", "est")
    (True, True, False)
    """
    return _distance(one, other) == 0


def _nearest(code: str, found: Sequence[str]) -> str | None:
    """The language of a code; of several the code itself, if it is there; None if it is missing."""
    near = [one for one in found if _distance(code, one) <= _NEAR]
    return min(near, key=lambda one: (one != code, _distance(code, one)), default=None)


def _distance(one: str, other: str) -> float:
    """How far two codes are apart, as langcodes says; a code that it does not know, from all."""
    try:
        return 0.0 if one == other else float(tag_distance(one, other))
    except LanguageTagError:
        return inf
