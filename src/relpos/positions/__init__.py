"""Position schemes: modules called as `q, k, terms = position(q, k)`, or added to the input."""

from importlib import import_module

from .absolute import LearnedAbsolute, Sinusoidal
from .absolute_keys import AbsoluteKeys
from .alibi import Alibi
from .axial_rotary import AxialRotary
from .base import BiasPosition, Position
from .bidirectional import Bidirectional
from .compose import Compose
from .continuous_bias import ContinuousBias
from .deberta import Deberta, DebertaEmbedding
from .gated import GatedBias
from .grid import Grid
from .huang import Huang
from .kerple import Kerple
from .no_position import NoPosition
from .relative_logits import RelativeLogits
from .resizing import resize_rows
from .rotary import Rotary
from .sandwich import Sandwich
from .shaw import Shaw
from .t5 import T5Bias
from .transformer_xl import TransformerXL
from .window import WindowBias
from .xpos import XPos

__all__ = [
    "AbsoluteKeys",
    "Alibi",
    "AxialRotary",
    "BiasPosition",
    "Bidirectional",
    "Compose",
    "ContinuousBias",
    "Deberta",
    "DebertaEmbedding",
    "GatedBias",
    "Grid",
    "Huang",
    "Kerple",
    "LearnedAbsolute",
    "NoPosition",
    "Position",
    "RelativeLogits",
    "Rotary",
    "Sandwich",
    "Shaw",
    "Sinusoidal",
    "T5Bias",
    "TransformerXL",
    "WindowBias",
    "XPos",
    "resize_rows",
]

# Other packages' names lie in `relpos.adapters`, which builds on this package.
_OF_ADAPTERS = ("AbsPosEmb1D", "RelPosEmb1D", "RelPosEmb2D")


def __getattr__(name: str) -> object:
    if name in _OF_ADAPTERS:
        return getattr(import_module("relpos.adapters"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_ADAPTERS})
