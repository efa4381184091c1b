"""Names of attention implementations in configurations of transformers, those of relpos too."""

from __future__ import annotations

__all__ = ["IMPLEMENTATIONS", "adapted_name", "original_name"]

#: What a configuration may have named before.
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention")


def adapted_name(name: str, *, causal: bool = False) -> str:
    """The implementation that stands in for `name`.

    Args:
        name: one of `IMPLEMENTATIONS`, or one that stands in already.
        causal: whether causal masks are narrow too.
    """
    causal = causal or name.startswith("relpos-causal-")
    return ("relpos-causal-" if causal else "relpos-") + original_name(name)


def original_name(name: str) -> str:
    """The implementation that `name` stands in for; any other name is its own.

    >>> original_name("relpos-causal-sdpa"), original_name("eager")
    ('sdpa', 'eager')
    """
    return name.removeprefix("relpos-").removeprefix("causal-")
