"""What models with ALiBi share (Press et al. 2022, section 3): a bias for each key, in `O(L)`.

    s_ij = scale * q_i . k_j + slope * (j - i) = scale * q_i . k_j + slope * j + a number for row i

A softmax does not see the number of its row, so these models add `slope * j`, one number for each
head and key, often with j counting real tokens alone, and rounded to the dtype of the activations.
That is a mask that broadcasts over the queries and holds padding as well. A table of `slope *
(j - i)` costs the same and differs by that rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ..adapted import Adapted
from ..cache_argument import takes_cache

__all__ = ["AlibiModel", "first_query"]


def _visible_keys(
    attention_mask: Tensor | None, x: Tensor | None, past: Any
) -> Bool[Tensor, "b 1 1 j"] | Tensor | None:
    """True for the keys that are tokens and no later than the last query; causality is not in it.

    A mask that is not `(b, j)` is returned as it is, and so is any where that cannot be traced.

    Args:
        attention_mask: `(b, j)`, nonzero for tokens; what is missing behind is padding. None: all
            are tokens.
        x: `(b, i)` or `(b, i, e)`, what the model is called with.
        past: the cache, before it is updated, or None.
    """
    if x is None or (attention_mask is not None and attention_mask.ndim != 2):
        return attention_mask
    queries = x.shape[1]
    start = 0 if past is None else past.get_seq_length()
    length = queries if past is None else past.get_mask_sizes(queries, 0)[0]
    if isinstance(start, Tensor):
        if queries > 1 and torch.compiler.is_compiling():
            return attention_mask
        start = start.to(x.device)
    if attention_mask is None:
        tokens = torch.ones(1, length, dtype=torch.bool, device=x.device)
    else:
        tokens = attention_mask.to(x.device, torch.bool)[:, :length]
        tokens = torch.nn.functional.pad(tokens, (0, length - tokens.shape[1]))
    if past is not None and past.is_compileable:
        # A static cache is longer than what it holds.
        tokens = tokens & (torch.arange(length, device=x.device) < start + queries)
    return tokens[:, None, None]


def first_query(past: Any, *, queries: int, layer: int) -> int | None:
    """The position of the first query, in tokens; None where it does not matter.

    Args:
        past: the cache, before it is updated (a static one counts on in the same tensor), or None.
        queries: how many there are.
        layer: the number of the layer.
    """
    if past is None or queries == 1:
        return None
    return int(past.get_query_offset(layer)) - past.get_mask_sizes(queries, layer)[1]


class AlibiModel(Adapted):
    """A base for models whose forward keeps a mask with four axes, and makes one of all pairs."""

    signatures = {
        "forward": (
            "self", "input_ids", "cache", "attention_mask", "inputs_embeds", "use_cache",
            "output_attentions", "output_hidden_states", "return_dict", "kwargs",
        )
    }  # fmt: skip
    # An original attention leaves causality to its mask.
    together = True

    def narrowed(self, attention_mask: Tensor | None, x: Tensor | None, past: Any) -> Tensor | None:
        """The mask that the original's forward is given.

        Args:
            attention_mask: that the model is given.
            x: `(b, i)` or `(b, i, e)`, its input.
            past: the cache, or None.
        """
        return _visible_keys(attention_mask, x, past)

    @takes_cache
    def forward(
        self,
        input_ids: Tensor | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        x = input_ids if inputs_embeds is None else inputs_embeds
        return super().forward(
            input_ids, cache, self.narrowed(attention_mask, x, cache),
            inputs_embeds, use_cache, output_attentions, output_hidden_states, return_dict,
            **kwargs,
        )  # fmt: skip
