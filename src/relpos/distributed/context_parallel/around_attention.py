"""What a model does with more tokens than one besides cut attention: made right, or refused.

T5 and its kin make the decoder's input of labels, and DeBERTa adds positions where embeddings are
made; both go by the tokens that they see, and are given those of the whole sequence. What cannot be
made right (other attention, pooling of some token, experts of a capacity) is refused: attention by
the name of its class, unless `acts_on_cut_tokens` says that it can do with this rank's tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...adapters.adapted import Adapted
from ...layers import GridAttention, MultiheadAttention
from ...positions import Position
from ..layout import Layout, Span, shard, unshard
from ..ranks.group import Ranks

__all__ = ["check_around", "cut_around", "join_around"]

RunsOf = Callable[[int], tuple[tuple[Span, ...], int]]

# By parts of the names of classes, which need transformers.
_REASONS = {
    "Pooler": "it reads a token that lies on one rank alone",
    "ForSequenceClassification": "it reads tokens that lie on some ranks alone",
    "ForMultipleChoice": "it reads tokens that lie on some ranks alone",
    "ForQuestionAnswering": "it reads tokens that lie on some ranks alone",
    "Top1Router": "it counts the tokens that it sees against the capacity of its experts",
}
# In the names of classes of attention, and at their ends.
_ATTENTION = ("Attention", "Attn", "MHA")
_ATTENTION_ITSELF = re.compile(r"(Attention|Attn|MHA)(\dd)?$")


def check_around(module: nn.Module, *, adapted: bool) -> None:
    """Raise if a model does what a rank with some of the tokens cannot.

    Args:
        module: of which layers are to be cut.
        adapted: whether it is a model with adapted layers.

    Raises:
        ValueError: if it has attention that is not cut, or as an adapted model other parts that
            read tokens of other ranks.
    """
    _check_part("module", module, adapted=adapted)


def _check_part(name: str, part: nn.Module, *, adapted: bool) -> bool:
    """Raise for a part of a model, or for one within it; whether there is any that will be cut."""
    if getattr(part, "acts_on_cut_tokens", False) or _is_cut(part):
        return True
    # The inner ones first, whose names say more.
    within = [
        _check_part(f"{name}.{child}", each, adapted=adapted)
        for child, each in part.named_children()
    ]
    able = any(within) or isinstance(part, Adapted)
    reason = _reads_other_tokens(part) if adapted else None
    if reason is None and not able and _is_attention(part):
        reason = _why_not_cut(part, adapted=adapted)
    if reason is not None:
        raise ValueError(
            f"ContextParallel: module must have no {_kind(part)}, whose sequence cannot be cut: "
            f"{reason}, got {name}"
        )
    return able


def cut_around(module: nn.Module, ranks: Ranks, layout: Layout, runs_of: RunsOf) -> None:
    """Change in place what such a model makes of its tokens.

    Args:
        module: of which layers are adapted.
        ranks: of the group.
        layout: of the tokens.
        runs_of: gives the runs of this rank's tokens, from how many it has, and how many all have.
    """
    for part in module.modules():
        if hasattr(type(part), "_shift_right"):
            part._shift_right = partial(_shift_right, part, ranks, layout)  # type: ignore[assignment]
        if hasattr(type(part), "prepare_decoder_input_ids_from_labels"):
            # Which data collators call, with whole sequences.
            part.prepare_decoder_input_ids_from_labels = partial(_shift_whole, part)  # type: ignore[assignment]
        if _adds_positions(part):
            part.forward = partial(_embed, part, runs_of)


def join_around(module: nn.Module) -> None:
    """Undo `cut_around`."""
    for part in module.modules():
        for name, own in (
            ("_shift_right", _shift_right), ("forward", _embed),
            ("prepare_decoder_input_ids_from_labels", _shift_whole),
        ):  # fmt: skip
            if getattr(vars(part).get(name), "func", None) is own:
                del vars(part)[name]


def _reads_other_tokens(part: nn.Module) -> str | None:
    """Why a part of an adapted model cannot do with some of the tokens, or None."""
    prompts = getattr(part, "peft_config", None)
    if isinstance(prompts, dict) and any(
        getattr(each, "is_prompt_learning", False) for each in prompts.values()
    ):
        return "it puts tokens of its own before those of every rank"
    kind = type(part).__name__
    return next((why for each, why in _REASONS.items() if each in kind), None)


def _is_cut(part: nn.Module) -> bool:
    """Whether a module attends as the style has it, or, as a scheme, for one that does."""
    if isinstance(part, Adapted):
        return bool(part.scheme)  # what else is adapted may hold anything
    return isinstance(part, MultiheadAttention | Position)


def _is_attention(part: nn.Module) -> bool:
    """Whether a module is attention, by its name, or part of a name if it has weights."""
    name = type(part).__name__
    if isinstance(part, GridAttention | nn.MultiheadAttention) or _ATTENTION_ITSELF.search(name):
        return True
    known = any(word in name for word in _ATTENTION)
    return known and any(x.ndim > 1 for x in part.parameters())


def _why_not_cut(part: nn.Module, *, adapted: bool) -> str:
    if adapted:
        return "relpos.adapters.adapt has not adapted it"
    if isinstance(part, GridAttention):
        alone = "its tokens lie on a map, and it would attend to this rank's tokens alone"
    elif isinstance(part, nn.MultiheadAttention):
        alone = (
            "it would attend to this rank's tokens alone (relpos.layers.MultiheadAttention takes "
            "its state)"
        )
    else:
        alone = (
            "it does not say acts_on_cut_tokens = True, and so would attend to this rank's tokens "
            "alone"
        )
    return f"{alone}; ContextParallel may be given the other parts by their names"


def _kind(part: nn.Module) -> str:
    return ("torch.nn." if type(part) is nn.MultiheadAttention else "") + type(part).__name__


def _shift_right(part: Any, ranks: Ranks, layout: Layout, labels: Tensor) -> Tensor:
    """The model's own, of the whole sequence."""
    whole = type(part)._shift_right(part, unshard(labels, ranks.given, layout))
    return shard(whole, ranks.given, layout)


def _shift_whole(part: Any, labels: Tensor) -> Tensor:
    """The model's own."""
    return type(part)._shift_right(part, labels)


def _adds_positions(part: nn.Module) -> bool:
    """Whether these are embeddings of DeBERTa that add one for each position."""
    return "Embeddings" in type(part).__name__ and bool(getattr(part, "position_biased_input", 0))


def _embed(
    part: nn.Module,
    runs_of: RunsOf,
    input_ids: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    mask: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
) -> Tensor:
    """The embeddings' forward, with the positions of this rank's tokens."""
    given = input_ids if input_ids is not None else inputs_embeds
    if position_ids is None and given is not None:
        runs, num_tokens = runs_of(given.shape[1])
        table = getattr(part, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and num_tokens > table.num_embeddings:
            raise ValueError(
                f"{type(part).__name__}: all ranks together must have at most as many tokens as "
                f"position_embeddings has rows, {table.num_embeddings}, got {num_tokens}"
            )
        positions = [torch.arange(first, end, device=given.device) for first, end in runs]
        position_ids = torch.cat(positions or [torch.arange(0, device=given.device)])[None]
    return type(part).forward(
        part, input_ids=input_ids, token_type_ids=token_type_ids, position_ids=position_ids,
        mask=mask, inputs_embeds=inputs_embeds,
    )  # fmt: skip
