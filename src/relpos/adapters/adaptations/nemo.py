"""NeMo's Conformer and FastConformer: Transformer-XL's positions (Dai et al. 2019).

The encoder hides padding and what is out of context by a mask of all pairs; here it hands its
layers what the mask is made from.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from .transformer_xl import transformer_xl_terms

__all__ = ["Attention", "Encoder", "EncoderMask"]

# The attention and the encoder are classes of different modules.
_TOGETHER = "nemo"


@dataclass(frozen=True)
class EncoderMask:
    """What takes part, in place of `(b, i, j)`, True for what is hidden.

    Args:
        tokens: True for keys that are no padding.
        contexts: of each query the first key that it may see, and the one after the last.
        first_query: the queries are those from here on.
    """

    tokens: Bool[Tensor, "b j"]
    contexts: Int[Tensor, "1 j 2"] | None
    first_query: int = 0

    def __getitem__(self, key: tuple[slice, slice]) -> EncoderMask:
        """With the last queries alone, as the encoder cuts a mask when it has a cache."""
        return replace(self, first_query=key[1].start)


class Attention(Adapted):
    """For `RelPositionMultiHeadAttention`."""

    scheme = "Transformer-XL"
    together = _TOGETHER
    signatures = {
        "forward": ("self", "query", "key", "value", "mask", "pos_emb", "cache"),
        "forward_qkv": ("self", "query", "key", "value"),
        "update_cache": ("self", "key", "value", "query", "cache"),
    }
    d_k: int
    forward_qkv: Any
    update_cache: Any
    dropout: nn.Dropout
    linear_out: nn.Module
    linear_pos: nn.Module
    pos_bias_u: nn.Parameter
    pos_bias_v: nn.Parameter

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        pos_emb: Tensor,
        cache: Tensor | None = None,
    ) -> Any:
        given = (query, key, value)
        key, value, query, kept = self.update_cache(key=key, value=value, query=query, cache=cache)
        if pos_emb.shape[:2] != (1, 2 * key.shape[1] - 1):
            return self.original_forward(*given, mask, pos_emb, cache)
        if torch.is_autocast_enabled():
            query, key, value = query.float(), key.float(), value.float()
        with self._without_float16():
            q, k, v = self.forward_qkv(query, key, value)
            scale = self.d_k**-0.5
            terms = transformer_xl_terms(
                self.linear_pos(pos_emb[0]), self.pos_bias_u, self.pos_bias_v, scale=scale
            )
            ranges = None
            if isinstance(mask, EncoderMask):
                if mask.contexts is not None:
                    ranges = mask.contexts[:, mask.first_query :]
                mask = mask.tokens[:, None, None]
            elif mask is not None:
                mask = ~mask[:, None]
            by_sdpa = getattr(self, "use_pytorch_sdpa", False)
            output, _ = attend(
                q + self.pos_bias_u[:, None], k, v, terms, mask=mask, scale=scale,
                dropout=drop_probability(self.dropout, sdpa_of=self if by_sdpa else None),
                key_ranges=ranges, window=self.window,
            )  # fmt: skip
            output = self.linear_out(output.flatten(2))
        return output if cache is None else (output, kept)

    def _without_float16(self) -> AbstractContextManager[object]:
        """As the original's module has it, of which a subclass may be one of another module."""
        modules = [sys.modules.get(cls.__module__) for cls in type(self).__mro__]
        contexts = [getattr(module, "avoid_float16_autocast_context", None) for module in modules]
        return next(filter(None, contexts), nullcontext)()


class Encoder(Adapted):
    """For `ConformerEncoder` and `ConformerEncoderAdapter`: without masks of all pairs."""

    together = _TOGETHER
    signatures = {
        "_create_masks": (
            "self", "att_context_size", "padding_length", "max_audio_length", "offset", "device",
        )
    }  # fmt: skip
    att_context_style: str
    layers: Any

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.self_attention_model == "rel_pos"

    def _create_masks(
        self,
        att_context_size: list[int],
        padding_length: Tensor,
        max_audio_length: int,
        offset: Tensor | None,
        device: torch.device,
    ) -> tuple[Tensor, Any]:
        # `change_attention_model` gives layers other attentions, and adapters may attend too.
        if not all(
            isinstance(layer.self_attn, Attention) and not layer.is_adapter_available()
            for layer in self.layers
        ):
            original: Any = super()
            return original._create_masks(
                att_context_size, padding_length, max_audio_length, offset, device
            )
        frames = torch.arange(max_audio_length, device=device)
        tokens = frames < padding_length[:, None]
        if offset is not None:
            tokens = tokens & (frames >= offset[:, None])
        contexts = _contexts(self.att_context_style, att_context_size, frames)
        return ~tokens, EncoderMask(tokens, contexts)


def _contexts(style: str, sizes: list[int], frames: Tensor) -> Int[Tensor, "1 j 2"] | None:
    """The first frame that each frame sees, and the one after the last; None: it sees all.

    Args:
        style: "regular", or in chunks: "chunked_limited", "chunked_limited_with_rc".
        sizes: frames to the left and to the right; -1: all. With "_with_rc": to the left of a
            chunk, of a chunk, and to its right.
        frames: their numbers.
    """
    if all(size < 0 for size in sizes):
        return None
    count = frames.shape[0]
    first, last = torch.zeros_like(frames), torch.full_like(frames, count - 1)
    if style == "chunked_limited_with_rc":
        left, chunk, right = sizes
        start = frames // chunk * chunk
        first, last = start - left, start + chunk - 1 + right
    elif style == "chunked_limited" and sizes[1] >= 0:
        chunk = sizes[1] + 1
        # As the original says "all".
        chunks = sizes[0] // chunk if sizes[0] >= 0 else 10000
        start = frames // chunk * chunk
        first, last = start - chunks * chunk, start + chunk - 1
    else:
        if sizes[0] >= 0:
            first = frames - sizes[0]
        if style == "regular" and sizes[1] >= 0:
            last = frames + sizes[1]
    return torch.stack([first.clamp(min=0), (last + 1).clamp(max=count)], -1)[None]
