"""Pieces of the music21 corpus as MIDI files: a folder to try `relpos music compare --data` on.

    python -m scripts.corpus_midi FOLDER --count 60

The pieces are taken from all composers in turn. They are scores played strictly in time, with few
marks of loudness: something to try the task on, not what it is for.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from music21 import converter, corpus
from music21.exceptions21 import Music21Exception
from rich.console import Console
from rich.progress import track

__all__ = ["chosen_scores", "export"]

_ENDINGS = (".mxl", ".xml", ".musicxml", ".krn")


def chosen_scores(count: int) -> list[Path]:
    """So many MusicXML and Humdrum scores of the corpus: the first of each composer, and so on.

    Args:
        count: at least 1.
    """
    root = Path(corpus.__file__).parent
    by_composer: dict[str, list[Path]] = {}
    for path in sorted(map(Path, corpus.corpora.CoreCorpus().getPaths())):
        if path.suffix in _ENDINGS:
            by_composer.setdefault(path.relative_to(root).parts[0], []).append(path)
    turns = [(turn, path) for paths in by_composer.values() for turn, path in enumerate(paths)]
    return [path for _, path in sorted(turns)][:count]


def export(folder: Path, count: int) -> int:
    """Write scores of the corpus as MIDI files, named by composer and piece.

    Args:
        folder: made if it is missing.
        count: how many scores to take.

    Returns:
        How many were written; music21 cannot play every score.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for path in track(chosen_scores(count), "Exporting", console=Console(stderr=True)):
        target = folder / f"{'-'.join(path.parts[-3:-1])}-{path.stem}.mid"
        try:
            converter.parse(path).write("midi", fp=target)
        except (Music21Exception, ValueError, TypeError, IndexError, AttributeError) as error:
            target.unlink(missing_ok=True)
            print(f"left out {path.name}: {error}", file=sys.stderr)
            continue
        written += 1
    return written


def main() -> None:
    """Export, and say how many."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count must be at least 1, got {options.count}")
    print(f"{export(options.folder, options.count)} MIDI files in {options.folder}")


if __name__ == "__main__":
    main()
