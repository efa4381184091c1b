"""Relative positions for every `torch.nn.MultiheadAttention` of a model that is to be trained.

Works in place on whatever holds such a module: `nn.TransformerEncoder`, `nn.TransformerDecoder`,
`nn.Transformer`, a vision transformer, a module of one's own. The parameters stay the same objects
under the same names, so that an optimizer or a checkpoint goes on; what is new is a `position`
inside each attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...checks import check_module
from ...positions.handover import check_position
from ..instance_forward import forget_own_forward, has_other_forward
from ..report import Report
from .attention import (
    AttentionWithPosition,
    CrossAttentionWithPosition,
    SelfAttentionWithPosition,
)
from .find import Found, find_attentions, is_cross_attention, match_names, why_not
from .zero_tables import explain_change, zero_tables

__all__ = ["add_positions", "remove_positions"]

Patterns = str | Sequence[str]


def add_positions(
    model: nn.Module,
    position: Callable[[int, int], nn.Module],
    *,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    cross_attention: bool = False,
    zero: bool = True,
) -> Report:
    """Give each `torch.nn.MultiheadAttention` of a model a position scheme, in place.

    The model computes what it did until the scheme's tables, zero at first, are trained. A scheme
    that acts whatever its tables are (Alibi, Kerple, Sandwich, Rotary, XPos, Deberta, cosines) is
    taken, and the report says that it changes the function. The fused inference of
    `nn.TransformerEncoder`, which knows no positions, is no longer used.

    The new parameters are those with `.position.` in their names: an optimizer that was made before
    needs them (`add_param_group`), and a checkpoint from before is loaded with `strict=False`.
    Compiling and wrapping (DistributedDataParallel, FSDP) come after; PEFT's LoRA of the attention
    comes before, or after while its weights still want gradients.

    Args:
        model: a module that is or holds such attention.
        position: gives a scheme for `(heads, head_dim)`, called once for each attention; one module
            given to several is shared by them. It is moved to the weights' device and dtype.
        include: patterns of `fnmatch`, one or several; only attention with a matching name is
            taken. None means all.
        exclude: patterns likewise; attention with a matching name is left.
        cross_attention: whether cross-attention is taken too; both sides then count from 0. It is
            known by keys or values of another width, by "cross" in its name or in that of the
            module that holds it, or by a `self_attn` beside it, as in
            `nn.TransformerDecoderLayer`. Anything else is taken for self-attention, and refuses to
            be called with another number of keys than of queries.
        zero: whether the scheme's tables are set to zero; if not, they stay as `position` made
            them.

    Returns:
        What was adapted, with its scheme, and what was left, with the reason: not included,
        cross-attention, a subclass, `add_bias_kv` or `add_zero_attn`, a dropout outside `[0, 1)`,
        a forward that was set on the instance.

    Raises:
        TypeError: if `model` is no module, or `position` makes none that acts on queries and keys.
        ValueError: if there is no such attention, a pattern matches none, none can be taken, the
            scheme does not fit, or the model is in a `DistributedDataParallel` already; the model
            is left as it was.

    >>> import torch
    >>> from relpos.positions import Shaw
    >>> layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> x = torch.randn(1, 10, 64)
    >>> before = model(x)
    >>> report = add_positions(model, lambda heads, head_dim: Shaw(head_dim, max_distance=8))
    >>> report.adapted[0]
    ('layers.0.self_attn', 'Shaw')
    >>> torch.allclose(model(x), before, atol=1e-5)
    True
    """
    found = _check_model(model)
    _check_maker(position)
    chosen = {
        "include": None if include is None else match_names("include", include, found),
        "exclude": None if exclude is None else match_names("exclude", exclude, found),
    }
    reasons = [_reason(model, each, **chosen, cross_attention=cross_attention) for each in found]
    left = [(x.names[0], why) for x, why in zip(found, reasons, strict=True) if why is not None]
    takeable = [x for x, why in zip(found, reasons, strict=True) if why is None]
    if not takeable:
        said = "; ".join(f"{name!r} {reason}" for name, reason in left)
        raise ValueError(f"add_positions: model must have an attention to take, got {said}")

    # All are made before the first is given away: an error leaves the model as it was.
    made = [_made_for(each, position, zero=zero) for each in takeable]
    adapted = []
    for each, (scheme, change) in zip(takeable, made, strict=True):
        across = is_cross_attention(model, each)
        forget_own_forward(each.module)
        each.module.__class__ = CrossAttentionWithPosition if across else SelfAttentionWithPosition
        each.module.position = scheme.train(each.module.training)
        notes = [type(scheme).__name__, *(["across"] if across else []), *_notes(each, change)]
        adapted.append((each.names[0], ", ".join(notes)))
    return Report(adapted, left)


def remove_positions(model: nn.Module) -> Report:
    """Take away what `add_positions` gave: each attention is torch's again, bit for bit.

    What the positions had learned goes with them.

    Args:
        model: a module, all of it.

    Returns:
        What became torch's again, with the scheme that it had; nothing if there was none.

    Raises:
        TypeError: if `model` is no module.
        ValueError: if the forward of an attention was replaced since (accelerate's hooks do), and
            would go on with its position, or its class (FSDP, parametrizations), which would be
            lost; nothing is changed.

    >>> from relpos.positions import Shaw
    >>> model = nn.MultiheadAttention(64, 4)
    >>> report = add_positions(model, lambda heads, head_dim: Shaw(head_dim, max_distance=8))
    >>> len(remove_positions(model).adapted), list(model.state_dict())[-1], type(model).__name__
    (1, 'out_proj.bias', 'MultiheadAttention')
    """
    check_module("remove_positions", "model", model)
    found = [x for x in find_attentions(model) if isinstance(x.module, AttentionWithPosition)]
    for each in found:
        if type(each.module) not in (SelfAttentionWithPosition, CrossAttentionWithPosition):
            raise ValueError(
                "remove_positions: attentions must have the class that add_positions gave them, "
                f"got {type(each.module).__name__} in {each.names[0] or 'the model'}; undo what "
                "changed it (FSDP, parametrizations) first"
            )
        if has_other_forward(each.module):
            raise ValueError(
                "remove_positions: attentions must have the forward of their class, got another "
                f"in {each.names[0] or 'the model'}; remove accelerate's hooks first"
            )
    removed = []
    for each in found:
        module = each.module
        if isinstance(module, AttentionWithPosition):
            forget_own_forward(module)
            removed.append((each.names[0], type(module.position).__name__))
            del module.position
            # To pyright an instance keeps its class.
            cast(nn.Module, module).__class__ = nn.MultiheadAttention
    return Report(removed, [])


def _reason(
    model: nn.Module,
    found: Found,
    *,
    include: list[nn.MultiheadAttention] | None,
    exclude: list[nn.MultiheadAttention] | None,
    cross_attention: bool,
) -> str | None:
    """Why an attention is left as it is; None if it is taken."""
    if include is not None and found.module not in include:
        return "not included"
    if exclude is not None and found.module in exclude:
        return "excluded"
    if not cross_attention and is_cross_attention(model, found):
        return "cross-attention, and cross_attention=False"
    return why_not(found)


def _made_for(
    found: Found, position: Callable[[int, int], nn.Module], *, zero: bool
) -> tuple[nn.Module, str | None]:
    """The scheme of one attention, and how it changes it."""
    module = found.module
    heads, head_dim, weight = module.num_heads, module.head_dim, module.out_proj.weight
    scheme = position(heads, head_dim)
    if not isinstance(scheme, nn.Module):
        raise TypeError(
            f"add_positions: position must return a module, got {type(scheme).__name__}"
        )
    check_position("add_positions", "position", scheme)
    if any(isinstance(part, nn.MultiheadAttention) for part in scheme.modules()):
        raise TypeError(
            f"add_positions: position must return a scheme, got {type(scheme).__name__}, which "
            "holds attention itself"
        )
    scheme = scheme.to(device=weight.device, dtype=weight.dtype)
    if zero:
        zero_tables(scheme)
    try:
        return scheme, explain_change(scheme, cast(Tensor, weight), heads, head_dim)
    except ValueError as error:
        raise ValueError(
            f"add_positions: position must fit heads={heads} and head_dim={head_dim} of "
            f"{found.names[0]!r}, got {type(scheme).__name__} ({error})"
        ) from error


def _notes(found: Found, change: str | None) -> list[str]:
    """What the report says of an attention beside its scheme."""
    notes = [] if change is None else [f"changes the function: {change}"]
    if found.module.out_proj.weight.is_meta:
        notes.append("without memory yet (device meta), as its weights")
    return notes + [f"shared as {name!r}" for name in found.names[1:]]


def _check_model(model: nn.Module) -> list[Found]:
    """The attentions of a model, of which there must be one."""
    check_module("add_positions", "model", model)
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise ValueError(
            "add_positions: model must be given its positions before DistributedDataParallel, "
            "which would not reduce their gradients, got a wrapped one"
        )
    found = find_attentions(model)
    if not found:
        raise ValueError(
            "add_positions: model must have a torch.nn.MultiheadAttention, got "
            f"{type(model).__name__}, which has none"
        )
    return found


def _check_maker(position: Callable[[int, int], nn.Module]) -> None:
    if isinstance(position, nn.Module) or not callable(position):
        raise TypeError(
            "add_positions: position must be a function of (heads, head_dim) that makes a scheme, "
            f"got {type(position).__name__}"
        )
