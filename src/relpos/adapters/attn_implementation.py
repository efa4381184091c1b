"""`attn_implementation="relpos"`: models without relative positions on `relpos.attention`.

Where positions are in the queries and keys already (rotary), or at the input, there is nothing to
adapt, but attention is what `relpos.attention` computes: with sliding windows, chunks and padding
as ranges of keys (`range_masks.py`), and with softcaps and sinks, for which transformers has eager
attention alone on a CPU, in memory of `O(L)`. `relpos.adapters.adapt` is for relative positions.
"""

from __future__ import annotations

from typing import Any
from typing import cast as typed

import torch
from jaxtyping import Int, Int64
from torch import Tensor, nn

from ..errors import ShapeError
from ..ranges import prefix_ranges
from .attend import attend
from .key_ranges_mask import KeyRangesMask
from .masks import check_mask, key_padding, with_bias
from .weights_wanted import weights_wanted

__all__ = ["attention_function"]


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """The output `(b, i, h, dv)`, and the weights if the model was asked for them.

    Args:
        module: that attends.
        query: `(b, h, i, d)`.
        key: `(b, g, j, d)`.
        value: `(b, g, j, dv)`.
        attention_mask: of all pairs, or None.
        dropout: probability that a weight is dropped.
        scaling: of the scores; None: `1 / sqrt(d)`.
        is_causal: whether keys ahead of the query are left out where there is no mask; None: as the
            module says.
        softcap: as in `relpos.attention`.
        s_aux: `(h,)`, the score of one more key, whose value is zero.
        sinks: `(b, h, i, 1)`, such a score for each query.
        position_bias: `(b or 1, h, i, j)`, added to the scores.
        indices: `(b, i, n)`, of the keys that were chosen for each query; those that the mask hides
            stay hidden. None: all were. They become a mask of all pairs.
        arguments: what the model hands to attention beside these; of a choice of blocks of keys,
            and of a paged cache, there must be none.

    Raises:
        ShapeError: if the mask is of integers, or of fewer keys.
        ValueError: if there is a choice of blocks or a paged cache.
    """
    for name in ("block_indices", "cache"):
        if arguments.get(name) is not None:
            raise ValueError(
                f"attn_implementation='relpos': {name} must be None, since chosen blocks and paged "
                f"caches are not supported, got {type(arguments[name]).__name__}"
            )
    i = query.shape[2]
    ranges, mask = _ranges_and_mask(attention_mask, key.shape[2])
    if indices is not None:
        mask = _chosen(mask, indices, keys=key.shape[2])
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    if is_causal and attention_mask is None and i > 1:
        # The queries of transformers are then the first of the keys' positions, as SDPA has them.
        ranges = prefix_ranges(0, i, device=query.device)
    return attend(
        query, key, value, mask=mask if position_bias is None else with_bias(mask, position_bias),
        key_ranges=ranges, scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout=dropout, softcap=softcap, sinks=sinks if s_aux is None else s_aux.view(1, -1, 1, 1),
        weights=weights_wanted(arguments),
    )  # fmt: skip


def _ranges_and_mask(
    mask: Tensor | None, keys: int
) -> tuple[Int64[Tensor, "b i 2"] | None, Tensor | None]:
    """Ranges of keys, and a mask beside them."""
    check_mask(mask, "attn_implementation='relpos'")
    if mask is None or not isinstance(mask, KeyRangesMask):
        return None, mask
    if mask.shape[-1] < keys:
        raise ShapeError(
            f"attn_implementation='relpos': attention_mask must be of {keys} keys, got "
            f"{mask.shape[-1]} (of an encoder's keys, prefill_chunk_size leaves too few)"
        )
    if mask.viewed:
        return None, mask.pairs()
    if mask.shape[-1] > keys:
        mask = typed(KeyRangesMask, mask[..., :keys])
    padding = None if mask.padding is None else key_padding(mask.padding)
    return mask.ranges[:, 0], padding


def _chosen(mask: Tensor | None, indices: Int[Tensor, "b i n"], *, keys: int) -> Tensor:
    """A mask that hides what was not chosen too."""
    chosen = torch.zeros(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device)
    chosen = chosen.scatter_(-1, indices.long(), True)[:, None]
    if mask is None:
        return chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, -torch.inf)
