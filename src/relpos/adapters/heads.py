"""What a module projects, with the heads before the tokens, as `relpos.attention` takes it."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

__all__ = ["project_heads", "split_heads", "split_qkv"]


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


def split_qkv(
    x: Float[Tensor, "b i hd"], *, heads: int, by_head: bool = False
) -> tuple[Float[Tensor, "b h i d"], ...]:
    """Queries, keys and values that one module projects, in this order, with heads before tokens.

    Args:
        x: of all three, each of all heads side by side.
        heads: h.
        by_head: instead: of all heads side by side, each of all three.
    """
    if by_head:
        return x.unflatten(-1, (heads, 3, -1)).permute(3, 0, 2, 1, 4).unbind(0)
    return x.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
