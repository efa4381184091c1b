"""T5 (Raffel et al. 2020) and its kin: one bias for each bucket of offsets, scores unscaled.

The first layer of a stack makes the bias and hands it to the others, `(1, h, i, j)` in the original
and here `(h, r)`, a row for each offset up to where the last bucket begins. All else, caches too,
is the original's forward. mT5, Switch, LongT5's decoder and Pop2Piano hold the same class under
other names; Pix2Struct's decoder names its projections otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..adapted import Adapted
from ..cache_argument import takes_cache
from ..implementation import is_adapted_name
from .buckets import NEVER_END, rows_of_buckets, t5_buckets_end

__all__ = ["Attention", "TextAttention"]


class Attention(Adapted):
    """For `T5Attention`: self-attention, whose bias is made here or handed on, and across."""

    scheme = "T5 bias"
    signatures = {
        "forward": (
            "self", "hidden_states", "mask", "key_value_states", "position_bias",
            "cache", "kwargs",
        ),
        "compute_bias": ("self", "query_length", "key_length", "device", "past_seen_tokens"),
        "_relative_position_bucket": (
            "relative_position", "bidirectional", "num_buckets", "max_distance",
        ),
    }  # fmt: skip
    masks_by_config = True
    causal_by_module = True
    config: Any
    is_decoder: bool
    is_causal: bool
    layer_idx: int
    has_relative_attention_bias: bool
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    relative_attention_bias: Any
    _relative_position_bucket: Any

    def refuses_cut(self) -> str | None:
        return None

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        decoder = getattr(module, "is_decoder", None)
        ends = t5_buckets_end(
            module.relative_attention_num_buckets, module.relative_attention_max_distance,
            bidirectional=not (cls.is_decoder if decoder is None else decoder),
        )  # fmt: skip
        return None if ends else NEVER_END

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return not module.is_decoder

    @classmethod
    def described(cls, module: Any) -> str:
        across = getattr(module, "is_decoder", False) and not module.is_causal
        return "no positions (cross-attention)" if across else cls.scheme

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        if not is_adapted_name(self.config._attn_implementation):
            # Another implementation was chosen since, which knows no tables.
            return self.original_forward(
                hidden_states, mask, key_value_states, position_bias, cache, **kwargs
            )
        if position_bias is None and not self.has_relative_attention_bias:
            # The original would make an `i x j` tensor of zeros.
            position_bias = hidden_states.new_zeros(1, 1, 1, 1)
        if key_value_states is None:
            kwargs |= self._query_start(hidden_states, cache)
        return super().forward(
            hidden_states, mask, key_value_states, position_bias, cache, **kwargs
        )

    def _query_start(self, hidden_states: Tensor, cache: Any) -> dict[str, int]:
        """`query_start`, where there is a cache that says it.

        Read before the original's forward: a static cache counts on when it is updated, in the same
        tensor.
        """
        if cache is None:
            return {}
        start = cache.get_seq_length(self.layer_idx)
        if self.attend_elsewhere is not None and int(start):
            raise ValueError(
                f"{type(self).__name__}: cut by ContextParallel, it must be called with an empty "
                f"cache or none, got one of {int(start)} tokens"
            )
        return {"query_start": int(start)} if _start_is_known(hidden_states.shape[1], start) else {}

    def compute_bias(
        self,
        query_length: int,
        key_length: int,
        device: torch.device | None = None,
        past_seen_tokens: int | Tensor = 0,
    ) -> Tensor:
        """`(h, r)`, a row for each offset; `(1, h, 1, j)` where a static cache is being traced."""
        named = is_adapted_name(self.config._attn_implementation)
        if not named or not _start_is_known(query_length, past_seen_tokens):
            original: Any = super()
            return original.compute_bias(query_length, key_length, device, past_seen_tokens)
        reach = self.relative_attention_max_distance
        offsets = torch.arange(
            -reach, 1 if self.is_causal else reach + 1,
            device=self.relative_attention_bias.weight.device if device is None else device,
        )  # fmt: skip
        return rows_of_buckets(self.relative_attention_bias, self._buckets(offsets))

    def _buckets(self, offsets: Tensor) -> Tensor:
        """The row of the embedding that each offset selects."""
        return self._relative_position_bucket(
            offsets, bidirectional=not self.is_decoder,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )  # fmt: skip


class TextAttention(Attention):
    """For `Pix2StructTextAttention`, whose keys ahead of the query share a bucket."""

    is_decoder = True

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return False


def _start_is_known(queries: int, start: int | Tensor) -> bool:
    """Whether the position of the first query is a number, or can be made one at no great price."""
    if not isinstance(start, Tensor):
        return True
    return queries > 1 and not torch.compiler.is_compiling()
