"""`adapt` and `restore`: a model's relative attention on `relpos.attention`, in place, and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..checks import check_module
from ..ops.locality import Window, resolve_window
from ..terms import Terms
from .adapted import Adapted, adapted_class, is_adapted_class, original_class
from .implementation import adapted_name, original_name
from .instance_forward import forget_own_forward, has_other_forward
from .registry import adaptation_of, unregistered_beside
from .report import Report
from .why_left import has_attention, why_left

__all__ = ["adapt", "restore"]


@dataclass(frozen=True)
class _Step:
    """One module that is to be adapted.

    Args:
        name: in the model.
        module: of the original class.
        adaptation: what replaces its methods.
        window: the offsets that take part; None: all.
        group: of what is adapted together or not at all; None: it is by itself.
    """

    name: str
    module: Any
    adaptation: type[Adapted]
    window: Window | None
    group: str | None


def adapt(model: nn.Module, *, strict: bool = False, window: Window | None = None) -> Report:
    """Have the relative attention of `model` computed by `relpos.attention`, in place.

    Parameters and state dict stay as they are, and so do outputs and gradients of real tokens, up
    to rounding; memory grows linearly with the number of tokens. What padded queries give may
    differ. `restore` is the way back.

    Args:
        model: of transformers, or any that holds modules of a known class (`families`).
        strict: whether to raise, and change nothing, if a module of relative attention is left.
        window: `(left, right)`: an encoder's tokens see only the keys at the offsets
            `-left..right`, in tokens. That is another function than the model was trained as, and
            close to it where attention is local. None: all keys.

    Returns:
        What was adapted, and what was left and why; it prints as a table.

    Raises:
        TypeError: if `model` is no module.
        ValueError: if it has no relative attention that relpos knows of, is adapted already, takes
            no window although one is given, if something is left and `strict` is True, or if
            transformers is older than 5.20. The model is then as it was.

    >>> import torch
    >>> from transformers import T5Config, T5EncoderModel
    >>> config = T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    >>> model = T5EncoderModel(config).eval()
    >>> tokens = torch.arange(20).view(1, 20)
    >>> before = model(tokens).last_hidden_state
    >>> print(adapt(model))
    adapted: 1
      encoder.block.0.layer.0.SelfAttention  1  T5 bias
    left as they were: 0
    >>> torch.testing.assert_close(model(tokens).last_hidden_state, before)
    """
    check_module("adapt", "model", model)
    (span,) = resolve_window("adapt", window, Terms()) or (None,)
    done = [name for name, module in model.named_modules() if isinstance(module, Adapted)]
    if done:
        raise ValueError(
            f"adapt: model must not be adapted yet, got one whose {done[0] or 'top module'} is; "
            "restore(model) first"
        )
    steps, report = _plan(model, span)
    if not report.adapted and not report.left:
        beside = [each for step in steps for each in unregistered_beside(type(step.module))]
        raise ValueError(
            "adapt: model must hold relative attention of a class in relpos.adapters.families(), "
            f"got a {type(model).__name__} with "
            + (
                f"copies of others in the family alone: register those of {_listed(beside)} too"
                if beside
                else "none; a copy of such a class is adapted once relpos.adapters.register(..., "
                "like=...) says what it copies; models of transformers without relative positions "
                'may attend by attn_implementation="relpos", after '
                "relpos.adapters.register_attn_implementation()"
            )
        )
    if strict and report.left:
        raise ValueError(f"adapt: strict must leave nothing, got\n{report}")
    if span is not None and not any(step.window for step in steps):
        raise ValueError(
            "adapt: window must be None for a model without self-attention that sees both ways "
            f"along a sequence, got {window} for a {type(model).__name__}"
        )
    for step in steps:
        step.adaptation.prepare()
    for step in steps:
        _apply(step)
    return report


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def restore(model: nn.Module) -> None:
    """Undo `adapt`, in place: the same classes and configurations as before.

    Args:
        model: adapted, as a whole or in part; nothing happens to what is not. Adapted modules
            elsewhere that share its configuration go on, but their masks may again be of all pairs.
            A part of a model whose modules are adapted together (`Adapted.together`) is to be
            restored with the others, which hand it what it does not know.

    Raises:
        TypeError: if `model` is no module.
        ValueError: if the forward of an adapted module was replaced since (accelerate's hooks do),
            and would go on calling relpos, or its class was (FSDP, parametrizations), and would be
            lost; nothing is changed.

    >>> from transformers import T5Config, T5EncoderModel
    >>> config = T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    >>> model = T5EncoderModel(config)
    >>> report = adapt(model)
    >>> restore(model)
    >>> type(model.encoder.block[0].layer[0].SelfAttention)
    <class 'transformers.models.t5.modeling_t5.T5Attention'>
    """
    check_module("restore", "model", model)
    adapted = {name: m for name, m in model.named_modules() if isinstance(m, Adapted)}
    for name, module in adapted.items():
        if not is_adapted_class(type(module)):
            raise ValueError(
                "restore: adapted modules must have the class that adapt gave them, got "
                f"{type(module).__name__} in {name or 'the model'}; undo what changed it (FSDP, "
                "parametrizations) first"
            )
        if has_other_forward(module):
            raise ValueError(
                "restore: adapted modules must have the forward of their class, got another in "
                f"{name or 'the model'}; remove accelerate's hooks first"
            )
    for module in adapted.values():
        forget_own_forward(module)
        if module.masks_by_config:
            config: Any = module.config
            config._attn_implementation_internal = original_name(config._attn_implementation)
        restored: Any = module
        restored.__class__ = original_class(type(module))


def _apply(step: _Step) -> None:
    """Adapt one module, and the configuration that chooses its masks."""
    forget_own_forward(step.module)
    cls = adapted_class(type(step.module), step.adaptation, step.window)
    step.module.__class__ = cls
    if step.adaptation.masks_by_config:
        config: Any = step.module.config
        config._attn_implementation_internal = adapted_name(
            config._attn_implementation, causal=step.adaptation.causal_by_module
        )


def _plan(model: nn.Module, window: Window | None) -> tuple[list[_Step], Report]:
    """What is to be done, and the report of it; nothing is changed."""
    steps, report = [], Report()
    # Where modules are adapted together or not at all: the first that is left.
    missing: dict[str, str] = {}
    parts: set[str] = set()
    for name, module in model.named_modules():
        adaptation = adaptation_of(type(module))
        if name in parts or (adaptation is not None and not has_attention(module, adaptation)):
            continue
        reason, group = why_left(module, adaptation), _group(module)
        if reason is not None and (adaptation is not None or not _is_part_of_left(name, report)):
            report.left.append((name, reason))
        if reason is not None or adaptation is None:
            if group is not None:
                missing.setdefault(group, name or "the model")
        else:
            takes = window is not None and adaptation.takes_window(module)
            steps.append(_Step(name, module, adaptation, window if takes else None, group))
            of_parts = _steps_of_parts(steps[-1])
            parts.update(step.name for step in of_parts)
            _add(of_parts, steps)
    taken = []
    for step in steps:
        first = None if step.group is None else missing.get(step.group)
        if first is None:
            taken.append(step)
        if not step.adaptation.scheme:
            continue
        if first is None:
            words = step.adaptation.described(step.module)
            if window is not None:
                words += f", window {window}" if step.window else ", no window"
            report.adapted.append((step.name, words))
        else:
            report.left.append((step.name, f"it needs {first} adapted too, which is left"))
    return taken, report


def _steps_of_parts(step: _Step) -> list[_Step]:
    """The steps of the modules in one that are adapted with it."""
    prefix = f"{step.name}." if step.name else ""
    return [
        _Step(prefix + part, step.module.get_submodule(part), own, None, step.group)
        for part, own in step.adaptation.parts_of(step.module).items()
    ]


def _add(more: list[_Step], steps: list[_Step]) -> None:
    """Add the steps of modules that are not planned yet, by whatever name."""
    planned = {id(step.module) for step in steps}
    for step in more:
        if id(step.module) not in planned:
            planned.add(id(step.module))
            steps.append(step)


def _group(module: nn.Module) -> str | None:
    """What names those adapted together or not at all: their classes' module, or their word.

    A subclass, which is left, belongs to it too.
    """
    for base in reversed(type(module).__mro__):
        adaptation = adaptation_of(base)
        if adaptation is not None:
            if not adaptation.together or not has_attention(module, adaptation):
                return None
            return base.__module__ if adaptation.together is True else str(adaptation.together)
    return None


def _is_part_of_left(name: str, report: Report) -> bool:
    """Whether the module that directly holds `name`, its table most often, is left already."""
    holder, dot, _ = name.rpartition(".")
    return bool(dot or name) and any(left == holder for left, _ in report.left)
