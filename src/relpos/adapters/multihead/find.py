"""Which attention modules of a model are meant, by name, and which cannot be taken, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..instance_forward import has_other_forward
from .attention import AttentionWithPosition

__all__ = ["Found", "find_attentions", "is_cross_attention", "match_names", "why_not"]

# Known by name: PEFT need not be there.
_LORA = ("peft.tuners.lora.layer", "MultiheadAttention")


@dataclass(frozen=True)
class Found:
    """An attention of a model.

    Args:
        module: the attention.
        names: its names; several if it is shared. Where PEFT's LoRA wraps it, those of the wrapper.
        lora: whether it does, and hands over all weights with its own in them.
    """

    module: nn.MultiheadAttention
    names: tuple[str, ...]
    lora: bool = False


def find_attentions(model: nn.Module) -> list[Found]:
    """Each `torch.nn.MultiheadAttention` of a model once, in the model's order.

    Args:
        model: any module; its own name is the empty one.
    """
    names: dict[nn.MultiheadAttention, list[str]] = {}
    wrapped: set[nn.Module] = set()
    # A wrapper comes before what it holds.
    for name, module in model.named_modules(remove_duplicate=False):
        if _is_lora(module):
            wrapped.add(module.get_submodule("base_layer"))
        elif isinstance(module, nn.MultiheadAttention):
            own = name.removesuffix("base_layer").removesuffix(".") if module in wrapped else name
            names.setdefault(module, []).append(own)
    return [Found(module, tuple(own), module in wrapped) for module, own in names.items()]


def match_names(
    argument: str, patterns: str | Sequence[str], found: Sequence[Found]
) -> list[nn.MultiheadAttention]:
    """The attentions with a name that a pattern matches.

    Args:
        argument: the patterns' name, as the user wrote it.
        patterns: as of `fnmatch`, one or several.
        found: of the model.

    Raises:
        TypeError: if a pattern is no string.
        ValueError: if there is no pattern, or one matches nothing.
    """
    several = isinstance(patterns, Sequence) and not isinstance(patterns, str)
    each: list[Any] = list(patterns) if several else [patterns]
    if not all(isinstance(pattern, str) for pattern in each):
        raise TypeError(f"add_positions: {argument} must be a pattern or several, got {patterns!r}")
    if not each:
        raise ValueError(f"add_positions: {argument} must be None or hold a pattern, got none")
    matched = []
    for pattern in each:
        hits = [x.module for x in found if any(fnmatchcase(name, pattern) for name in x.names)]
        if not hits:
            there = ", ".join(repr(name) for x in found for name in x.names)
            raise ValueError(
                f"add_positions: {argument} must match an attention, of which there are {there}, "
                f"got {pattern!r}"
            )
        matched += hits
    return matched


def is_cross_attention(model: nn.Module, found: Found) -> bool:
    """Whether its queries and keys are of different sequences, as far as that shows before a call.

    It shows by keys or values of another width; by "cross" in its name or in that of the module
    that holds it; or by a `self_attn` beside it, as in `nn.TransformerDecoderLayer` and its copies.

    Args:
        model: the module in which it was found.
        found: the attention.
    """
    module = found.module
    if module.kdim != module.embed_dim or module.vdim != module.embed_dim:
        return True
    for name in found.names:
        parent, _, own = name.rpartition(".")
        if "cross" in f"{parent.rpartition('.')[2]}.{own}".lower():
            return True
        beside = getattr(model.get_submodule(parent), "self_attn", module)
        if _is_lora(beside):
            beside = beside.base_layer
        if isinstance(beside, nn.MultiheadAttention) and beside is not module:
            return True
    return False


def why_not(found: Found) -> str | None:
    """The reason why an attention can be given no position; None if it can.

    Args:
        found: the attention.
    """
    module = found.module
    if isinstance(module, AttentionWithPosition):
        return f"has a position already, {type(module.position).__name__}"
    if type(module) is not nn.MultiheadAttention:
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        return f"is a subclass, {kind}, which may compute something else"
    return next((reason for there, reason in _obstacles(module, lora=found.lora) if there), None)


def _is_lora(module: Any) -> bool:
    """Whether PEFT's LoRA of a whole attention."""
    return (type(module).__module__, type(module).__name__) == _LORA


def _is_share(dropout: Any) -> bool:
    return isinstance(dropout, int | float) and 0 <= dropout < 1


def _obstacles(module: nn.MultiheadAttention, *, lora: bool) -> list[tuple[bool, str]]:
    """What stands in the way of a position, and whether it is there."""
    projection: Any = module.out_proj.base_layer if lora else module.out_proj
    dtype, out_proj = projection.weight.dtype, type(projection)
    # Quantized or sharded tensors, say.
    packed = {type(x).__name__ for x in module.parameters() if type(x) is not nn.Parameter}
    return [
        (
            has_other_forward(module),
            "has a forward of its own (a hook of accelerate?), which would hide a position",
        ),
        (
            out_proj not in (nn.Linear, NonDynamicallyQuantizableLinear),
            f"has an out_proj of another class, {out_proj.__module__}.{out_proj.__qualname__}",
        ),
        (
            module.bias_k is not None,
            "has add_bias_kv=True, and an appended key has no position",
        ),
        (module.add_zero_attn, "has add_zero_attn=True, and an appended key has no position"),
        (hasattr(module, "position"), "has an attribute `position` of its own"),
        (not dtype.is_floating_point, f"has weights of {dtype}"),
        (not _is_share(module.dropout), f"has dropout={module.dropout}, not in 0 <= dropout < 1"),
        (bool(packed), f"has weights of class {', '.join(sorted(packed))}"),
    ]
