"""Falcon (Almazrouei et al. 2023) with ALiBi; with rotary positions it is left as it is.

The model folds biases and mask into one, which is `(b, h, 1, j)` where masks are narrow.
"""

from __future__ import annotations

import threading
from math import sqrt
from typing import Any

from torch import Tensor, nn

from ..adapted import Adapted
from ..attend import attend
from ..attention_function import register
from ..implementation import AdaptedConfig
from .alibi import first_query

__all__ = ["Attention", "Model"]

# By their identities, the models whose forward this thread is in: others may be in another's.
_of_thread = threading.local()


class Attention(Adapted):
    """For `FalconAttention`."""

    scheme = "ALiBi"
    together = True
    weights_dropout = "attention_dropout"
    signatures = {
        "forward": (
            "self", "hidden_states", "alibi", "attention_mask", "position_ids", "layer_past",
            "use_cache", "output_attentions", "position_embeddings", "kwargs",
        ),
        "_split_heads": ("self", "fused_qkv"),
    }  # fmt: skip
    config: Any
    layer_idx: int
    num_heads: int
    head_dim: int
    inv_norm_factor: float
    attention_dropout: nn.Dropout
    query_key_value: nn.Module
    dense: nn.Module
    _split_heads: Any

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.config.alibi

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        assert alibi is not None
        q, k, v = (
            x.transpose(1, 2) for x in self._split_heads(self.query_key_value(hidden_states))
        )
        queries = q.shape[2]
        start = first_query(layer_past, queries=queries, layer=self.layer_idx)
        if layer_past is not None:
            k, v = layer_past.update(k, v, self.layer_idx)
        alibi = alibi.view(q.shape[0], self.num_heads, 1, -1)
        mask = alibi / sqrt(self.head_dim) if attention_mask is None else attention_mask
        if output_attentions or self.config._attn_implementation == "eager":
            # There the model adds the bias to its mask and its attention adds it once more.
            mask = mask + alibi * self.inv_norm_factor
        output, weights = attend(
            q, k, v, mask=mask, causal=bool(queries > 1), query_start=start,
            scale=self.inv_norm_factor, weights=output_attentions,
            dropout=self.attention_dropout.p if self.training else 0.0,
        )  # fmt: skip
        return self.dense(output.flatten(2)), weights


class Model(Adapted):
    """For `FalconModel`: its masks are narrow.

    During its forward the configuration names an implementation of relpos's to this model alone: an
    original attention of a model that shares the configuration does not go through transformers'
    functions and would take a narrow mask for the whole one.
    """

    signatures = {
        "forward": (
            "self", "input_ids", "cache", "attention_mask", "position_ids",
            "inputs_embeds", "use_cache", "output_attentions", "output_hidden_states",
            "return_dict", "kwargs",
        )
    }  # fmt: skip
    # An original attention leaves causality to its mask.
    together = True

    @classmethod
    def prepare(cls) -> None:
        register()

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.config.alibi

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        for block in module.h:
            kind = type(block.self_attention)
            if (kind.__module__, kind.__name__) != (type(module).__module__, "FalconAttention"):
                return f"its layers must attend by FalconAttention, got {kind.__name__}"
        return None

    @property
    def config(self) -> Any:
        """The configuration; during the forward it names another implementation."""
        config = self.__dict__["config"]
        is_at_work = id(self) in getattr(_of_thread, "models_at_work", ())
        return AdaptedConfig(config, causal=True) if is_at_work else config

    @config.setter
    def config(self, config: Any) -> None:
        self.__dict__["config"] = config

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before = getattr(_of_thread, "models_at_work", ())
        _of_thread.models_at_work = (*before, id(self))
        try:
            return super().forward(*args, **kwargs)
        finally:
            _of_thread.models_at_work = before
