"""Names of attention implementations in configurations of transformers, those of relpos too."""

from __future__ import annotations

from typing import Any

__all__ = ["IMPLEMENTATIONS", "AdaptedConfig", "adapted_name", "is_adapted_name", "original_name"]

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


def is_adapted_name(name: str) -> bool:
    """Whether a configuration names an implementation of relpos's.

    >>> is_adapted_name("relpos-sdpa"), is_adapted_name("sdpa")
    (True, False)
    """
    return name != original_name(name)


def original_name(name: str) -> str:
    """The implementation that `name` stands in for; any other name is its own.

    >>> original_name("relpos-causal-sdpa"), original_name("eager")
    ('sdpa', 'eager')
    """
    return name.removeprefix("relpos-").removeprefix("causal-")


class AdaptedConfig:
    """A model's configuration as it is, but for the name of its attention implementation.

    What one module sees through it stays its own: other models may share the configuration.

    Args:
        config: of a model of transformers.
        causal: whether causal masks are narrow too.
    """

    def __init__(self, config: Any, *, causal: bool) -> None:
        self._original, self._causal = config, causal

    @property
    def _attn_implementation(self) -> str:
        return adapted_name(self._original._attn_implementation, causal=self._causal)

    def __getattr__(self, name: str) -> Any:
        # A copy asks before there is anything to answer with.
        if name in ("_original", "_causal") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._original, name)
