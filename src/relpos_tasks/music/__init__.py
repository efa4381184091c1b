"""Bach chorales: scores in, tokens for a language model, score and sound out.

`score` (engraving, by music21 and verovio), `sound` (MIDI and WAV) and `melody` (a tune from a
file) are imported by their full names: they load large packages. `performances` is music of the
other kind: MIDI files as they were played, without voices or bars.
"""

from .augment import semitones_within, transpose, voice_ranges
from .baselines import counting_baselines
from .corpus import chorales
from .literature import read_literature
from .musicxml import read_piece
from .piece import SILENCE, STEPS_PER_QUARTER, VOICES, Piece
from .score_lines import ScoreError
from .split import Split, same_music, split_literature, split_pieces
from .tokens import BEGIN, REST, Vocabulary, vocabulary_of

__all__ = [
    "BEGIN",
    "REST",
    "SILENCE",
    "STEPS_PER_QUARTER",
    "VOICES",
    "Piece",
    "ScoreError",
    "Split",
    "Vocabulary",
    "chorales",
    "counting_baselines",
    "read_literature",
    "read_piece",
    "same_music",
    "semitones_within",
    "split_literature",
    "split_pieces",
    "transpose",
    "vocabulary_of",
    "voice_ranges",
]
