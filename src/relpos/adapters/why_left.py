"""Why a module of a model is left as it is, in the words of the report."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from torch import nn

from .adapted import Adapted
from .cache_argument import same_parameters
from .implementation import IMPLEMENTATIONS, original_name
from .instance_forward import has_other_forward
from .not_adapted import TELLTALES, looks_relative, why_not_adapted
from .registry import adaptation_of, adaptations, missing_copies

__all__ = ["has_attention", "why_left"]


def has_attention(module: nn.Module, adaptation: type[Adapted]) -> bool:
    """Whether a module is relative attention at all, or lacks what would say so.

    Args:
        module: of the original class.
        adaptation: what would replace its methods.
    """
    try:
        return adaptation.applies(module)
    except AttributeError:
        if _missing(module, adaptation) is None:
            raise
        return True


def why_left(module: nn.Module, adaptation: type[Adapted] | None) -> str | None:
    """Why a module is left as it is; None if it is not, or is none of relative attention.

    Args:
        module: of the original class.
        adaptation: what would replace its methods; None if relpos knows of nothing.
    """
    if adaptation is None:
        return _unknown(module)
    if has_other_forward(module):
        return "its forward was replaced on the instance (accelerate's hooks do); adapt before that"
    return (
        _changed_signature(type(module), adaptation)
        or _missing(module, adaptation)
        or _lonely_copy(type(module))
        or _unknown_implementation(module, adaptation)
        or _wrong_dropout(module, adaptation)
        or adaptation.unsupported(module)
        or _wrong_part(module, adaptation)
    )


def _unknown(module: nn.Module) -> str | None:
    """What relative attention a module without adaptation seems to be; None if none."""
    cls = type(module)
    if (known := why_not_adapted(module)) is not None:
        return known
    if (base := _known_base(module)) is not None:
        return (
            f"a subclass of {base.__name__}, which may compute something else; if it does not: "
            "relpos.adapters.register(..., like=...)"
        )
    if not looks_relative(module):
        return None
    reason = f"looks like relative attention, but relpos does not know {cls.__name__}"
    if built_like := _built_like(module):
        copied = " or ".join(built_like)
        reason += f"; if it is a copy of {copied}: relpos.adapters.register(..., like=...)"
    return reason


def _known_base(module: nn.Module) -> type | None:
    """The class that would be adapted, of which the module's is a subclass."""
    for base in type(module).__mro__[1:]:
        adaptation = adaptation_of(base)
        if adaptation is None or not has_attention(module, adaptation):
            continue
        if adaptation.scheme or adaptation.together:
            return base
    return None


def _built_like(module: nn.Module) -> list[str]:
    """The known classes whose methods and attributes a module has, each as `family.Class`.

    Of those with one adaptation the first, or the first that is called as the module's class is.
    """
    cls = type(module)
    held = {*module._parameters, *module._modules, *module._buffers}.intersection(TELLTALES)
    found: dict[type[Adapted], str] = {}
    known = sorted(adaptations(), key=lambda row: not row[0].endswith(f".{cls.__name__}"))
    for name, adaptation in known:
        if (
            (held.intersection(_attributes(adaptation)) or name.endswith(f".{cls.__name__}"))
            and _changed_signature(cls, adaptation) is None
            and _missing(module, adaptation) is None
        ):
            found.setdefault(adaptation, name)
    return list(found.values())


@cache
def _attributes(adaptation: type[Adapted]) -> dict[str, str]:
    """What an adaptation reads of a module, by its annotations: names and kinds."""
    kinds = {
        name: str(kind).removeprefix("typing.")
        for base in reversed(adaptation.__mro__[: adaptation.__mro__.index(Adapted)])
        for name, kind in inspect.get_annotations(base).items()
    }
    return {name: kind for name, kind in kinds.items() if not kind.startswith("ClassVar")}


def _missing(module: nn.Module, adaptation: type[Adapted]) -> str | None:
    """Which attributes a module lacks that its adaptation annotates; None if it has all.

    Those of kind `Any` may be absent, and so may those to which the adaptation gives a value.
    """
    lacking = []
    for name, kind in _attributes(adaptation).items():
        if kind == "Any" or hasattr(adaptation, name):
            continue
        if not hasattr(module, name):
            lacking.append(name)
        elif kind.startswith("tuple[") and not isinstance(getattr(module, name), Sequence):
            # Some Swins have one number for both axes.
            lacking.append(f"{name} that is a tuple")
    return f"{type(module).__name__} has no {', '.join(lacking)}" if lacking else None


def _lonely_copy(cls: type[nn.Module]) -> str | None:
    """Which classes are to be registered beside a copy; None if it needs no other."""
    needed = missing_copies(cls)
    return f"copies of {', '.join(needed)} must be registered beside it" if needed else None


def _unknown_implementation(module: Any, adaptation: type[Adapted]) -> str | None:
    """Why masks cannot be had by the module's configuration; None if they can, or need not."""
    if not adaptation.masks_by_config:
        return None
    name = original_name(str(module.config._attn_implementation))
    if getattr(module.config, "output_attentions", False):
        return "config.output_attentions must be False: ask for weights in the call"
    if name in IMPLEMENTATIONS:
        return None
    return f"attn_implementation must be one of {', '.join(IMPLEMENTATIONS)}, got {name!r}"


def _wrong_dropout(module: nn.Module, adaptation: type[Adapted]) -> str | None:
    """How the dropout of weights is none that `relpos.attention` takes; None if it takes it."""
    name = adaptation.weights_dropout if adaptation.scheme else ""
    dropout = getattr(module, name, None)
    if isinstance(dropout, nn.Module):
        # Torch's, or DeBERTa's own.
        dropout = getattr(dropout, "p", getattr(dropout, "drop_prob", None))
    if isinstance(dropout, (int, float)) and not 0 <= dropout < 1:
        return f"{name} must be in 0 <= {name} < 1, got {dropout}"
    return None


def _wrong_part(module: Any, adaptation: type[Adapted]) -> str | None:
    """Why a module in this one that is adapted with it cannot be; None if all can."""
    for name, own in adaptation.parts_of(module).items():
        part = module.get_submodule(name)
        # Its class first: another has other methods.
        reason = own.unsupported(part) or why_left(part, own)
        if reason is not None:
            return f"{name}, a {type(part).__name__}: {reason}"
    return None


def _changed_signature(cls: type[nn.Module], adaptation: type[Adapted]) -> str | None:
    """How a method differs from what the adaptation was written for; None if none does."""
    for method, expected in adaptation.signatures.items():
        function = getattr(cls, method, None)
        found = () if function is None else tuple(inspect.signature(function).parameters)
        if not same_parameters(found, expected):
            return (
                f"{cls.__name__}.{method} has the parameters {', '.join(found) or '(none)'} "
                f"here, where {', '.join(expected)} were expected"
            )
        if function is not None and (own := _foreign_module(cls, function)):
            return f"{cls.__name__}.{method} was replaced by one of {own}"
    return None


def _foreign_module(cls: type[nn.Module], function: Callable[..., Any]) -> str | None:
    """Where a method was defined that was put into a class from elsewhere; None if none was.

    One that bears the original's name by `functools.wraps` cannot be told from a decorated one.
    """
    module = getattr(inspect.unwrap(function), "__module__", None)
    return None if module in {base.__module__ for base in cls.__mro__} else str(module)
