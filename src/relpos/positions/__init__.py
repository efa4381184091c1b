"""Position schemes: modules called as `q, k, terms = position(q, k)`, or added to the input."""

from importlib import import_module

from .absolute import LearnedAbsolute, Sinusoidal
from .absolute_keys import AbsoluteKeys
from .alibi import Alibi
from .base import BiasPosition, Position
from .bidirectional import Bidirectional
from .deberta import Deberta, DebertaEmbedding
from .gated import GatedBias
from .grid import Grid
from .huang import Huang
from .relative_logits import RelativeLogits
from .resizing import resize_rows
from .shaw import Shaw
from .t5 import T5Bias
from .transformer_xl import TransformerXL
from .window import WindowBias

__all__ = [
    "AbsoluteKeys",
    "Alibi",
    "BiasPosition",
    "Bidirectional",
    "Deberta",
    "DebertaEmbedding",
    "GatedBias",
    "Grid",
    "Huang",
    "LearnedAbsolute",
    "Position",
    "RelativeLogits",
    "Shaw",
    "Sinusoidal",
    "T5Bias",
    "TransformerXL",
    "WindowBias",
    "resize_rows",
]


def __getattr__(name: str) -> object:
    # Other packages' names lie in `relpos.adapters`, which builds on this package.
    if name in {"AbsPosEmb1D", "RelPosEmb1D", "RelPosEmb2D"}:
        return getattr(import_module("relpos.adapters"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
