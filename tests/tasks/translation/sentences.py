"""Small parallel texts, made up as they are needed."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

from relpos_tasks.translation import Pair

_WHO = (("A man", "Ein Mann"), ("A woman", "Eine Frau"), ("The dog", "Der Hund"))
_WHAT = (("sleeps", "schläft"), ("sings", "singt"), ("is running", "rennt"), ("waits", "wartet"))
_HOW = (("loudly", "laut"), ("here", "hier"), ("again", "wieder"), ("with us", "mit uns"))


def pairs(count: int, *, words: int = 4) -> tuple[Pair, ...]:
    """Pairs of which no two share a sentence, of at least so many words on either side."""
    found = []
    for n in range(count):
        who, what = _WHO[n % 3], _WHAT[n % 4]
        ways = [_HOW[(n + k) % 4] for k in range(max(words - 3, 1))]
        found.append(
            Pair(
                " ".join([who[0], what[0], *(way[0] for way in ways), f"{n} times."]),
                " ".join([who[1], what[1], *(way[1] for way in ways), f"{n}-mal."]),
            )
        )
    return tuple(found)


def write_folder(folder: Path, parts: dict[str, Sequence[Pair]], *, packed: bool = True) -> Path:
    """A folder with Multi30k's names, in English and German."""
    folder.mkdir(exist_ok=True)
    for part, its_pairs in parts.items():
        for language, column in (("en", 0), ("de", 1)):
            raw = "".join(f"{pair[column]}\n" for pair in its_pairs).encode()
            path = folder / f"{part}.{language}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(raw) if packed else raw)
    return folder


def write_table(path: Path, its_pairs: Sequence[Pair]) -> Path:
    """A file of pairs, with an attribution behind each."""
    path.write_text("".join(f"{pair.source}\t{pair.target}\tCC BY\n" for pair in its_pairs))
    return path
