"""`nn.MultiheadAttention`'s two masks as the one of `relpos.attention`, and a part of its keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import FLOATING, check_integers, check_shape, check_tensor
from ..errors import ShapeError
from ..ops.locality import AnyKeyRanges

__all__ = ["from_key", "merge_masks"]


def merge_masks(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    *,
    sizes: tuple[int, int, int, int],
) -> Tensor | None:
    """The mask of `relpos.attention`: boolean with True = takes part, or additive.

    Args:
        key_padding_mask: `(b, j)`; boolean with True = drop, or additive.
        attn_mask: `(i, j)` or `(b * h, i, j)`; likewise.
        sizes: `(b, h, i, j)`.

    Returns:
        A mask with four axes, each full or 1, boolean only if both are; None without masks.

    Raises:
        ShapeError: if a mask has another shape, or is neither boolean nor floating point.
    """
    b, h, i, j = sizes
    masks = []
    if key_padding_mask is not None:
        _check("key_padding_mask", key_padding_mask, ((b, j),), "(b, j)")
        masks.append(key_padding_mask[:, None, None, :])
    if attn_mask is not None:
        _check("attn_mask", attn_mask, ((i, j), (b * h, i, j)), "(i, j) or (b * h, i, j)")
        masks.append(
            attn_mask[None, None] if attn_mask.ndim == 2 else attn_mask.reshape(b, h, i, j)
        )
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        return ~(masks[0] if len(masks) == 1 else masks[0] | masks[1])
    dtype = next(mask.dtype for mask in masks if mask.dtype != torch.bool)
    first, *rest = (_additive(mask, dtype) for mask in masks)
    return first + rest[0] if rest else first


def from_key(
    start: int,
    mask: Tensor | None,
    documents: Tensor | None,
    key_ranges: AnyKeyRanges,
    *,
    sizes: tuple[int, int, int],
) -> tuple[Tensor | None, Tensor | None, AnyKeyRanges]:
    """What was given for all keys as it is for those from `start` on.

    Args:
        start: number of the first key that is left.
        mask: of `merge_masks`.
        documents: `(b or 1, j)`.
        key_ranges: `(b or 1, i, 2)`.
        sizes: `(b, i, j)`, all keys counted.

    Raises:
        ShapeError: if `documents` or `key_ranges` has another shape, or the latter no integers.

    >>> from_key(3, None, torch.arange(5)[None], torch.tensor([[[2, 5]]]), sizes=(1, 1, 5))
    (None, tensor([[3, 4]]), tensor([[[-1,  2]]]))
    """
    name, (b, i, j) = "MultiheadAttention", sizes
    if documents is not None:
        check_shape(name, "documents", documents, "b j", {"b": (1, b), "j": j})
        documents = documents[:, start:]
    if key_ranges is not None:
        ranges: Any = key_ranges  # such positions have no grid, whose axes could have some
        check_shape(name, "key_ranges", ranges, "b i 2", {"b": (1, b), "i": i})
        check_integers(name, "key_ranges", ranges)
        # Unsigned integers would wrap, and so would the least of all, as no limit may be written.
        key_ranges = ranges.long().clamp(min=0) - start
    return None if mask is None else mask[..., start:], documents, key_ranges


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _check(name: str, mask: Tensor, shapes: tuple[tuple[int, ...], ...], axes: str) -> None:
    check_tensor("MultiheadAttention", name, mask)
    if tuple(mask.shape) not in shapes:
        rule = " or ".join(map(str, shapes))
        raise ShapeError(
            f"MultiheadAttention: {name} must be {axes}, here {rule}, got {tuple(mask.shape)}"
        )
    if mask.dtype not in (torch.bool, *FLOATING):
        raise ShapeError(
            f"MultiheadAttention: {name} must be boolean (True is dropped) or floating point, "
            f"got {mask.dtype}"
        )
