"""Every position scheme by a name, at its initial state and with sizes that a picture can show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import torch
from torch import nn

from ..adapters import AbsPosEmb1D, RelPosEmb1D, RelPosEmb2D
from ..checks import check_count
from ..positions import (
    AbsoluteKeys,
    Alibi,
    AxialRotary,
    Bidirectional,
    Compose,
    ContinuousBias,
    Deberta,
    GatedBias,
    Grid,
    Huang,
    Kerple,
    LearnedAbsolute,
    NoPosition,
    RelativeLogits,
    Rotary,
    Sandwich,
    Shaw,
    Sinusoidal,
    T5Bias,
    TransformerXL,
    WindowBias,
    XPos,
)

__all__ = ["SCHEMES", "Scheme", "Sizes", "initial"]


@dataclass(frozen=True)
class Sizes:
    """Tokens, query heads, and the width of one head.

    Raises:
        ValueError: if one is below 1.
    """

    length: int = 48
    heads: int = 4
    head_dim: int = 32

    def __post_init__(self) -> None:
        for name in ("length", "heads", "head_dim"):
            check_count("Sizes", name, getattr(self, name))

    @property
    def width(self) -> int:
        """The width of the layer's input."""
        return self.heads * self.head_dim

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of a map with as many tokens, as close to a square as they allow.

        >>> Sizes(length=48).grid
        (6, 8)
        """
        height = next(n for n in range(isqrt(self.length), 0, -1) if self.length % n == 0)
        return height, self.length // height

    @property
    def buckets(self) -> int:
        """Log buckets on one side (`Deberta`): half as many as tokens, even and at least 4."""
        return 2 * max(2, self.length // 4)

    @property
    def distance(self) -> int:
        """A quarter of the length, so that clipping is seen."""
        return max(1, self.length // 4)


@dataclass(frozen=True)
class Scheme:
    """How a scheme is made, and whether it is made for causal attention."""

    make: Callable[[Sizes], nn.Module]
    causal: bool = False


# Short names, for the command line, of the classes on their right.
SCHEMES: dict[str, Scheme] = {
    "abs-pos-emb-1d": Scheme(lambda s: AbsPosEmb1D(s.length, s.head_dim)),
    "absolute": Scheme(lambda s: LearnedAbsolute(s.width, s.length)),
    "absolute-keys": Scheme(lambda s: AbsoluteKeys(s.head_dim, s.length)),
    "alibi": Scheme(lambda s: Alibi(s.heads)),
    "axial-rotary": Scheme(lambda s: AxialRotary(s.head_dim, s.grid, 100.0)),
    "bidirectional": Scheme(lambda s: Bidirectional(s.head_dim, s.length)),
    "compose": Scheme(
        lambda s: Compose(Shaw(s.head_dim, s.distance, keys=False), T5Bias(s.heads), Alibi(s.heads))
    ),
    "continuous": Scheme(lambda s: ContinuousBias(s.heads, s.grid)),
    "deberta": Scheme(
        lambda s: Deberta(
            s.head_dim, s.heads, max(s.length, s.buckets // 2 + 2), position_buckets=s.buckets
        )
    ),
    "gated": Scheme(lambda s: GatedBias(T5Bias(s.heads), s.heads, s.head_dim)),
    "grid": Scheme(lambda s: Grid(s.head_dim, s.grid)),
    "huang": Scheme(lambda s: Huang(s.head_dim, s.length), causal=True),
    "kerple": Scheme(lambda s: Kerple(s.heads)),
    "none": Scheme(lambda s: NoPosition()),
    "rel-pos-emb-1d": Scheme(lambda s: RelPosEmb1D(s.length, s.head_dim)),
    "rel-pos-emb-2d": Scheme(lambda s: RelPosEmb2D(s.grid, s.head_dim)),
    "relative-logits": Scheme(
        lambda s: RelativeLogits(3 * s.distance, 16, s.heads, s.width), causal=True
    ),
    "rotary": Scheme(lambda s: Rotary(s.head_dim)),
    "sandwich": Scheme(lambda s: Sandwich(s.heads)),
    "shaw": Scheme(lambda s: Shaw(s.head_dim, s.distance)),
    "sinusoidal": Scheme(lambda s: Sinusoidal(s.width)),
    "t5": Scheme(lambda s: T5Bias(s.heads)),
    "transformer-xl": Scheme(lambda s: TransformerXL(s.head_dim, s.heads)),
    "window": Scheme(lambda s: WindowBias(s.heads, s.grid)),
    # So that what fades in thousands of tokens is seen in these.
    "xpos": Scheme(lambda s: XPos(s.head_dim, scale_base=float(s.length)), causal=True),
}


def initial(name: str, sizes: Sizes, *, seed: int = 0) -> tuple[nn.Module, bool]:
    """A scheme whose parameters were just drawn, and whether it is made for causal attention.

    Args:
        name: one of `SCHEMES`.
        sizes: of the scheme.
        seed: of the parameters.

    Raises:
        ValueError: if there is no such scheme.

    >>> initial("t5", Sizes(heads=8))[0]
    T5Bias(heads=8, buckets=32, max_distance=128, bidirectional=True)
    """
    if name not in SCHEMES:
        raise ValueError(f"initial: name must be one of {', '.join(SCHEMES)}, got {name!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SCHEMES[name].make(sizes), SCHEMES[name].causal
