"""What a config of transformers says of a model's rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["rotary_arguments"]


def rotary_arguments(config: Any, layer_type: str | None = None) -> dict[str, Any]:
    """The arguments of `Rotary` for a model.

    Transformers 5 has all in `rope_parameters`; before, `rope_theta`, `partial_rotary_factor` and
    `rope_scaling` lay beside each other. GPT-J has `rotary_dim`.

    Args:
        config: the model's.
        layer_type: of the layer, where `rope_parameters` has an entry for each.

    Raises:
        TypeError: if the config has no widths, or its rotary parameters are no dictionary.
        ValueError: if there is no entry for `layer_type`, or there are several and it is None.

    >>> from types import SimpleNamespace
    >>> rotary_arguments(SimpleNamespace(hidden_size=32, num_attention_heads=4, rope_theta=5e5))
    {'head_dim': 8, 'max_position_embeddings': None, 'scaling': {'rope_theta': 500000.0}}
    """
    head_dim = getattr(config, "head_dim", None) or _width_of_a_head(config)
    longest = getattr(config, "max_position_embeddings", None)
    said = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if not isinstance(said, Mapping):
        raise TypeError(
            "Rotary.from_config: rope_parameters (or rope_scaling) must be a dictionary, "
            f"got {said!r}"
        )
    scaling = _of_layer(said, layer_type)
    for name in ("rope_theta", "partial_rotary_factor"):
        value = getattr(config, name, None)
        if value is not None:
            scaling.setdefault(name, value)
    # Phi-3 and others keep it outside, where it comes first.
    trained = getattr(config, "original_max_position_embeddings", None)
    if trained is not None and scaling.get("rope_type", scaling.get("type")) in (
        "yarn", "longrope", "llama3",
    ):  # fmt: skip
        name = "original_max_position_embeddings"
        # A layer's own comes before it.
        own = None if layer_type is None else scaling.get(name)
        scaling[name] = trained if own is None else own
    arguments = {"head_dim": head_dim, "max_position_embeddings": longest, "scaling": scaling}
    rotary_dim = getattr(config, "rotary_dim", None)
    return arguments if rotary_dim is None else arguments | {"rotary_dim": rotary_dim}


def _width_of_a_head(config: Any) -> int:
    width, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        raise TypeError(
            "Rotary.from_config: config must have head_dim, or hidden_size and "
            f"num_attention_heads, got {type(config).__name__} with {width!r} and {heads!r}"
        )
    return width // heads


def _of_layer(said: Mapping[str, Any], layer_type: str | None) -> dict[str, Any]:
    """A copy of the parameters of one type of layer."""
    nested = {name: value for name, value in said.items() if isinstance(value, Mapping)}
    if not nested:
        return dict(said)
    if not isinstance(layer_type, str) or layer_type not in nested:
        raise ValueError(
            f"Rotary.from_config: layer_type must be one of {', '.join(nested)}, got {layer_type!r}"
        )
    return dict(nested[layer_type])
