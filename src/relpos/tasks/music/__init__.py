"""Bach chorales: scores in, tokens for a language model, score and sound out."""

from .corpus import chorales
from .grid import SILENCE, STEPS_PER_QUARTER, VOICES, Piece, ScoreError
from .musicxml import read_piece
from .tokens import BEGIN, REST, Vocabulary, vocabulary_of

__all__ = [
    "BEGIN",
    "REST",
    "SILENCE",
    "STEPS_PER_QUARTER",
    "VOICES",
    "Piece",
    "ScoreError",
    "Vocabulary",
    "chorales",
    "read_piece",
    "vocabulary_of",
]
