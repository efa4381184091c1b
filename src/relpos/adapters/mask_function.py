"""Masks of `O(L)` from transformers' functions, under the names of relpos's implementations.

A mask that is padding alone is `(b, 1, 1, j)`, or None; so is, under `relpos-causal-`, one that is
padding and causality, with or without the configuration's sliding window. All others are what they
were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from .masks import narrow_mask

__all__ = ["make_mask_function", "slides"]


def make_mask_function(base: str, *, causal: bool) -> Callable[..., Tensor | None]:
    """The mask function that stands in for that of `base`.

    Args:
        base: the implementation whose masks all others are.
        causal: whether causal masks are narrow too.
    """

    def mask_function(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: Any = 0,
        kv_offset: int = 0,
        mask_function: Any = None,
        attention_mask: Tensor | None = None,
        **arguments: Any,
    ) -> Tensor | None:
        both_ways = mask_function is masking_utils.bidirectional_mask_function
        # A cache that is longer than what it holds ends behind the last query.
        to_the_end = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
        backwards = mask_function is masking_utils.causal_mask_function or (
            q_length > 1 and slides(**arguments)
        )
        if both_ways or (causal and backwards and to_the_end):
            mask = narrow_mask(attention_mask, length=kv_length, start=kv_offset)
            if mask is None and causal and kv_length > q_length > 1:
                # None would mean that the queries are the first, before what a cache has room for.
                device = arguments.get("device")
                mask = torch.ones(1, 1, 1, kv_length, dtype=torch.bool, device=device)
            return mask
        whole = masking_utils.eager_mask if base == "eager" else masking_utils.sdpa_mask
        return whole(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            **arguments,
        )  # fmt: skip

    return mask_function


def slides(
    *,
    config: Any = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = False,
    use_vmap: bool = False,
    **_: Any,
) -> bool:
    """Whether a mask is causality within the window of the configuration, and nothing else.

    transformers says so by what it lets its SDPA do without a mask.

    Args:
        config: of the model.
        local_size: the window, or the size of a chunk, in tokens; None: there is neither.
        allow_is_causal_skip: whether no other rule was added.
        use_vmap: whether the mask's function takes numbers alone.
    """
    return (
        local_size is not None
        and local_size == getattr(config, "sliding_window", None)
        and getattr(config, "attention_chunk_size", None) is None
        and allow_is_causal_skip
        and not use_vmap
    )
