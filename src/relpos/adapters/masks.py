"""Masks of padding that have no row for each query, and such masks made whole."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ..errors import ShapeError
from ..ops.torch_dispatcher import may_pass_by_dispatcher
from ..ops.transforms import is_transformed

__all__ = [
    "additive_mask", "check_mask", "encoder_mask", "has_numbers", "key_padding", "narrow_mask",
    "whole_mask", "with_bias",
]  # fmt: skip


def check_mask(mask: Tensor | None, function: str = "adapt") -> None:
    """Raise for a mask of integers.

    transformers would add them to the scores: a 1, meant as a token, and a 0, meant as none.

    Args:
        mask: as a module was given it.
        function: what the error begins with.

    Raises:
        ShapeError: if it is neither boolean nor floating point.
    """
    if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
        raise ShapeError(
            f"{function}: attention_mask of more than two axes must be boolean (True takes part) "
            f"or floating point (added to the scores), got {mask.dtype}; attention_mask.bool() "
            "says that 1 takes part"
        )


def additive_mask(mask: Bool[Tensor, "..."], dtype: torch.dtype) -> Tensor:
    """`mask` as what is added to scores: 0 for True, the least number there is for False.

    Args:
        mask: True for tokens.
        dtype: of the scores.
    """
    lowest = torch.finfo(dtype).min
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, lowest)


def key_padding(mask: Tensor) -> Bool[Tensor, "b 1 1 j"]:
    """`(b, j)`, nonzero for tokens, as a mask that is True for them.

    Args:
        mask: `(b, j)`, of any dtype.
    """
    return mask.to(torch.bool)[:, None, None, :]


def narrow_mask(
    attention_mask: Bool[Tensor, "b s"] | None, *, length: int, start: int
) -> Bool[Tensor, "b 1 1 j"] | None:
    """The padding among the keys `start..start + length - 1`; None where there is none.

    Args:
        attention_mask: True for tokens, of the keys from 0 on; what is missing behind is padding.
            None: all are tokens.
        length: j, in tokens.
        start: of the keys, in tokens.
    """
    if attention_mask is None:
        return None
    missing = start + length - attention_mask.shape[-1]
    if missing > 0:
        attention_mask = nn.functional.pad(attention_mask, (0, missing))
    mask = attention_mask[:, start : start + length]
    # Looked at only where nobody waits for it, as for another device.
    if mask.device.type == "cpu" and has_numbers(mask) and bool(mask.all()):
        return None
    return key_padding(mask)


def has_numbers(mask: Tensor) -> bool:
    """Whether there are numbers to look at: not while it is traced, mapped, fake or on `meta`."""
    return may_pass_by_dispatcher((mask,)) and not is_transformed()


def encoder_mask(attention_mask: Tensor | None, *, length: int) -> Tensor | None:
    """What an encoder hands its layers for a mask of tokens: `(b, 1, 1, j)`, or None for none.

    transformers makes a mask of all pairs only of one with two axes.

    Args:
        attention_mask: `(b, j)`, nonzero for tokens; any other is returned as it is.
        length: j, in tokens.
    """
    if attention_mask is None or attention_mask.ndim != 2:
        return attention_mask
    return narrow_mask(attention_mask.to(torch.bool), length=length, start=0)


def whole_mask(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    *,
    sliding_window: int | None = None,
) -> Tensor | None:
    """The mask with a row for each query, where the module is causal; or the mask as it is.

    Args:
        module: that attends, and that says by `is_causal` what it is.
        query: `(b, h, i, d)`.
        key: `(b, g, j, d)`.
        mask: `(b, 1, 1, j)` and True for tokens: the queries are the last of the keys' positions;
            or None: they are the first, as in transformers; any other is returned as it is.
        sliding_window: how many keys a query sees, itself among them; None: all before it.
    """
    i, j = query.shape[2], key.shape[2]
    narrow = mask is None or (mask.dtype == torch.bool and mask.shape[-2] == 1)
    if i == 1 or not narrow or not getattr(module, "is_causal", False):
        return mask
    positions = torch.arange(j, device=query.device)
    queries = positions[:i] if mask is None else positions[j - i :]
    causal = (positions <= queries[:, None])[None, None]
    if sliding_window is not None:
        causal = causal & (positions > queries[:, None] - sliding_window)
    return causal if mask is None else causal & mask


def with_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    """A mask and a bias of all pairs as one mask.

    Args:
        mask: boolean, added to the scores, or None.
        bias: added to the scores.

    Raises:
        ShapeError: if the mask is of integers.
    """
    check_mask(mask)
    if mask is None:
        return bias
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
