"""relpos among transformers' attention implementations: masks of `O(L)`, and tables as biases.

transformers chooses attention and masks by one name in a configuration, `_attn_implementation`.
For families with `masks_by_config` `adapt` puts `relpos-` before the name that stands there, and
`restore` takes it away. Under it

- masks are `(b, 1, 1, j)` or None wherever padding is all that there is, and under
  `relpos-causal-`, where every self-attention says by `is_causal` what it is, padding and
  causality, within the window that it hands over if it has one; all others are what they were;
- an adapted module attends by `relpos.attention`, and a `position_bias` with two axes is its
  table, a row for each offset;
- modules that are not adapted attend as before, with causal masks made whole again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..terms import OffsetTable, Terms
from ..traced_sizes import plain_size
from .adapted import Adapted
from .attend import attend
from .implementation import IMPLEMENTATIONS, adapted_name
from .mask_function import make_mask_function
from .masks import additive_mask, whole_mask, with_bias
from .weights_wanted import weights_wanted

__all__ = ["register"]

_Attention = Callable[..., tuple[Tensor, Tensor | None]]


def register() -> None:
    """Make the names known to transformers; again and again, without harm."""
    for (base, causal), (attention, masks) in _FUNCTIONS.items():
        AttentionInterface.register(adapted_name(base, causal=causal), attention)
        AttentionMaskInterface.register(adapted_name(base, causal=causal), masks)


def _attention_function(base: str, *, causal: bool) -> _Attention:
    def attention_function(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor | None]:
        bias = arguments.get("position_bias")
        # A table may come from an adapted layer to one that is not.
        if isinstance(module, Adapted) or (bias is not None and bias.ndim == 2):
            return _adapted_attention(module, query, key, value, attention_mask, **arguments)
        if causal:
            # Under the other names a causal mask that is None is transformers' own, whose queries
            # are the first of a static cache, not the last.
            window = arguments.get("sliding_window")
            attention_mask = whole_mask(module, query, key, attention_mask, sliding_window=window)
        plain, mask = _plain_attention(module, base, attention_mask, query)
        return plain(module, query, key, value, mask, **arguments)

    return attention_function


def _adapted_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    position_bias: Tensor | None = None,
    query_start: int | None = None,
    sliding_window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """`relpos.attention` of an adapted module.

    Its bias is a table, `(h, i, j)`, one zero, or what the module says that it stands for.
    """
    causal = bool(getattr(module, "is_causal", False)) if is_causal is None else is_causal
    terms, window = Terms(), None
    narrow = mask is None or mask.shape[-2] == 1
    if sliding_window is not None and narrow and query.shape[2] > 1:
        # The mask of a single query has the window in it.
        window = (sliding_window - 1, 0)
    found = None
    if position_bias is not None and isinstance(module, Adapted):
        found = module.bias_terms(position_bias)
    if found is not None:
        terms = found
    elif position_bias is not None and position_bias.ndim == 2:
        rows = plain_size(position_bias, 1)  # the same for all lengths
        terms = Terms(bias=OffsetTable(position_bias, 1 - rows if causal else -(rows // 2)))
        window = module.window if isinstance(module, Adapted) else None
        if query_start is None and causal and key.shape[2] > query.shape[2] > 1:
            query_start = _query_start(module, mask)
    elif position_bias is not None and position_bias.numel() > 1:
        if isinstance(module, Adapted):
            module.refuse_window()
        mask = with_bias(whole_mask(module, query, key, mask), position_bias)
    return attend(
        query, key, value, terms, mask=mask, causal=causal, query_start=query_start,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout=dropout if module.training else 0.0, window=window, sinks=sinks,
        softcap=softcap,
        weights=weights_wanted(arguments), elsewhere=getattr(module, "attend_elsewhere", None),
    )  # fmt: skip


def _query_start(module: nn.Module, mask: Tensor | None) -> int | None:
    """The first query's position for a module that does not say it; None: the queries are last."""
    if mask is None:
        return 0
    if mask.shape[-2] == 1:
        return None
    raise ValueError(
        f"adapt: {type(module).__name__} left beside adapted ones must be given one token at a "
        f"time once a static cache holds some, got {mask.shape[-2]}; use another cache, or restore"
    )


def _plain_attention(
    module: nn.Module, base: str, mask: Tensor | None, query: Tensor
) -> tuple[_Attention, Tensor | None]:
    """What computes a module's attention under `base`, and the mask in the form that it takes.

    A model's eager function is its own. Flex attention takes block masks; SDPA gives the same.
    """
    if base != "eager":
        return sdpa_attention_forward, mask
    if mask is not None and mask.dtype == torch.bool:
        mask = additive_mask(mask, query.dtype)
    # A subclass of somebody's own may be defined elsewhere.
    modules = (sys.modules[cls.__module__] for cls in type(module).__mro__)
    eager = next(x for x in modules if hasattr(x, "eager_attention_forward"))
    return eager.eager_attention_forward, mask


_FUNCTIONS = {
    (base, causal): (
        _attention_function(base, causal=causal),
        make_mask_function(base, causal=causal),
    )
    for base in IMPLEMENTATIONS
    for causal in (False, True)
}
