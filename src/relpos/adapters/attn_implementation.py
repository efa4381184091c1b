"""`attn_implementation="relpos"`: any model of transformers on `relpos.attention`.

Where positions are in the queries and keys already (rotary), or at the input, there is nothing to
adapt, but attention is what `relpos.attention` computes: with sliding windows, chunks and padding
as ranges of keys (`range_masks.py`), and with softcaps and sinks, for which transformers has eager
attention alone on a CPU, in memory of `O(L)`. `relpos.adapters.adapt` is for relative positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from .attend import attend

__all__ = ["register_attn_implementation"]

NAME = "relpos"


def register_attn_implementation() -> None:
    """Make `attn_implementation="relpos"` known to transformers; again and again, without harm.

    Then `from_pretrained(..., attn_implementation="relpos")` and `model.set_attn_implementation(
    "relpos")` take it. For models that have an "sdpa" of transformers' interface, or a softcap or
    sinks beside it, outputs at real tokens, losses and gradients stay the same up to rounding;
    masks are ranges of keys wherever each query sees keys in one piece. Models with eager attention
    of their own alone (BLOOM, XGLM) are refused when they are called, and models that work on their
    masks themselves (DeepSeek-V4, Doge) must not be given it.

    Raises:
        ImportError: if transformers is not installed.

    >>> register_attn_implementation()
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(num_hidden_layers=1, vocab_size=50, hidden_size=64)
    >>> model = LlamaModel._from_config(config, attn_implementation="relpos")
    >>> model.config._attn_implementation
    'relpos'
    """
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415

    from .range_masks import range_mask  # noqa: PLC0415

    AttentionInterface.register(NAME, attention_function)
    AttentionMaskInterface.register(NAME, range_mask)


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
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    position_bias: Tensor | None = None,
    cache: Any = None,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """The output `(b, i, h, dv)`, and the weights if the model was asked for them.

    Args:
        module: that attends.
        query: `(b, h, i, d)`.
        key: `(b, g, j, d)`.
        value: `(b, g, j, dv)`.
        attention_mask: ranges `(b or 1, 1, i, 2)`, a mask of pairs, or None.
        dropout: probability that a weight is dropped.
        scaling: of the scores; None: `1 / sqrt(d)`.
        is_causal: whether keys ahead of the query are left out where there is no mask; None: as the
            module says.
        softcap: as in `relpos.attention`.
        s_aux: `(h,)`, the score of one more key, whose value is zero.
        sinks: `(b, h, i, 1)`, the same for each query.
        indices: must be None: a choice of keys is not supported.
        block_indices: likewise.
        position_bias: `(b or 1, h, i, j)`, added to the scores.
        cache: must be None: a paged cache is not supported.
        arguments: what the model hands to attention beside these.

    Raises:
        ShapeError: if the mask is of integers and no ranges.
        ValueError: if there is a paged cache.
    """
    from .weights_wanted import weights_wanted  # noqa: PLC0415

    if cache is not None:
        raise ValueError(
            f"attn_implementation={NAME!r}: cache must be None, since paged ones are not "
            f"supported, got {type(cache).__name__}"
        )
    if indices is not None or block_indices is not None:
        raise ValueError(
            f"attn_implementation={NAME!r}: indices and block_indices must be None, since a choice "
            "of keys is not supported, got some; set_attn_implementation('eager')"
        )
    i, j = query.shape[2], key.shape[2]
    ranges, mask = _ranges_or_mask(attention_mask, i)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    causal = is_causal and attention_mask is None and i > 1
    if position_bias is not None:
        mask = position_bias if mask is None else _with_bias(mask, position_bias)
    # Without a mask the queries of transformers are the first, as SDPA has them.
    if causal and mask is not None:
        # Beside a number for each pair, which would be taken for all that there is to say.
        ends = torch.arange(1, i + 1, device=query.device)
        ranges = torch.stack([torch.zeros_like(ends), ends], dim=-1)[None]
    return attend(
        query, key, value, mask=mask, key_ranges=ranges, causal=causal,
        query_start=0 if causal and j != i else None,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling, dropout=dropout,
        softcap=softcap, sinks=sinks if s_aux is None else s_aux.view(1, -1, 1, 1),
        weights=weights_wanted(arguments),
    )  # fmt: skip


def _ranges_or_mask(mask: Tensor | None, queries: int) -> tuple[Tensor | None, Tensor | None]:
    if mask is None or mask.dtype == torch.bool or mask.is_floating_point():
        return None, mask
    if mask.ndim != 4 or mask.shape[1:] != (1, queries, 2):
        raise ShapeError(
            f"attn_implementation={NAME!r}: attention_mask must be ranges of keys (b or 1, 1, "
            f"{queries}, 2) where it is of integers, got {tuple(mask.shape)}; for a model that "
            "changes its masks there is set_attn_implementation('sdpa')"
        )
    return mask[:, 0], None


def _with_bias(mask: Tensor, bias: Tensor) -> Tensor:
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
