"""What speaks other people's names: their modules with the same arguments and state dicts."""

from .ai_summer import AbsPosEmb1D, RelPosEmb1D, RelPosEmb2D
from .relative_global import RelativeGlobalAttention

__all__ = ["AbsPosEmb1D", "RelPosEmb1D", "RelPosEmb2D", "RelativeGlobalAttention"]
