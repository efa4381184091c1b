"""What a module projects, with the heads before the tokens, as `relpos.attention` takes it."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

__all__ = ["project_heads", "split_heads"]


def project_heads(
    x: Float[Tensor, "b i e"], *projections: Callable[[Tensor], Tensor], width: int
) -> tuple[Float[Tensor, "b _h i d"], ...]:
    """`x` by each of the projections: queries, keys and values, most often.

    Args:
        x: of the tokens.
        projections: modules that give all heads side by side.
        width: d, of one head.
    """
    return tuple(split_heads(project(x), width=width) for project in projections)


def split_heads(x: Float[Tensor, "*b i hd"], *, width: int) -> Float[Tensor, "*b h i d"]:
    """`x` with heads before the tokens.

    Args:
        x: of all heads, side by side.
        width: d, of one head.
    """
    return x.unflatten(-1, (-1, width)).transpose(-3, -2)
