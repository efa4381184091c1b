"""Position schemes: modules called as `q, k, terms = position(q, k)`, or added to the input."""

from .absolute import LearnedAbsolute, Sinusoidal
from .base import BiasPosition, Position
from .bidirectional import Bidirectional
from .huang import Huang
from .shaw import Shaw
from .transformer_xl import TransformerXL

__all__ = [
    "BiasPosition",
    "Bidirectional",
    "Huang",
    "LearnedAbsolute",
    "Position",
    "Shaw",
    "Sinusoidal",
    "TransformerXL",
]
