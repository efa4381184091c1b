"""Names of attention implementations in configurations of transformers, those of relpos too.

`adapt` sets names of its own, for models with relative positions. `"relpos"` is for the others.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "IMPLEMENTATIONS", "AdaptedConfig", "adapted_name", "is_adapted_name", "original_name",
    "register_attn_implementation",
]  # fmt: skip

#: What a configuration may have named before.
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention")


def register_attn_implementation() -> None:
    """Make `attn_implementation="relpos"` known to transformers; again and again, without harm.

    Then `from_pretrained(..., attn_implementation="relpos")` and `model.set_attn_implementation(
    "relpos")` take it. For models that attend by transformers' interface, outputs at real tokens,
    losses and gradients stay the same up to rounding, softcaps and sinks among them; masks are
    ranges of keys wherever each query sees keys in one piece, with padding anywhere. Models with
    eager attention of their own alone (BLOOM, XGLM) are refused when they are called.

    Raises:
        ImportError: if transformers is not installed.

    >>> register_attn_implementation()
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(num_hidden_layers=1, vocab_size=50, hidden_size=64)
    >>> model = LlamaModel._from_config(config, attn_implementation="relpos")
    >>> model.config._attn_implementation
    'relpos'
    """
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415

    from .attn_implementation import attention_function  # noqa: PLC0415
    from .range_masks import range_mask  # noqa: PLC0415

    AttentionInterface.register("relpos", attention_function)
    AttentionMaskInterface.register("relpos", range_mask)


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
