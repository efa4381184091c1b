"""Parakeet's encoder (Fast Conformer, Rekesh et al. 2023): Transformer-XL's positions.

The encoder makes a mask of all pairs and a table of sinusoids for each sequence of the batch; here
the mask has one row for all queries, and the table is one. Queries that are padding see the real
keys, where the original gives them uniform weights; nothing reads them. Without gradients, long
inputs go through the convolutions in front and through the feed-forward layers piece by piece, and
tables are made for one head at a time (over several devices, for as many as each call needs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..adapted import Adapted
from ..attend import attend
from ..cache_argument import takes_cache
from ..heads import project_heads
from ..masks import key_padding
from ..weights_wanted import weights_wanted
from .pieces import subsample_in_pieces
from .transformer_xl import transformer_xl_terms

__all__ = ["Encoder", "EncoderAttention", "PositionalEncoding", "Subsampling"]


# Offsets from which on, without gradients, the table of one head is made at a time.
_LONG_TABLE = 8192


class EncoderAttention(Adapted):
    """For `ParakeetEncoderAttention`."""

    scheme = "Transformer-XL"
    weights_dropout = "attention_dropout"
    signatures = {
        "forward": ("self", "hidden_states", "position_embeddings", "attention_mask", "kwargs")
    }
    config: Any
    layer_idx: int
    head_dim: int
    scaling: float
    attention_dropout: float
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    relative_k_proj: nn.Module
    bias_u: nn.Parameter
    bias_v: nn.Parameter

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        # In training the original would run, which sees all.
        return not module.config.dropout_positions

    @classmethod
    def described(cls, module: Any) -> str:
        if module.config.dropout_positions:
            return f"{cls.scheme}; in training as before, since dropout_positions is not 0"
        return cls.scheme

    def refuses_cut(self) -> str | None:
        return None  # in an encoder that is cut

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor | None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        # Dropped positions are another table for each sequence of the batch.
        if position_embeddings is None or (self.training and self.config.dropout_positions):
            return self.original_forward(
                hidden_states, position_embeddings, attention_mask, **kwargs
            )
        return self._attend(hidden_states, position_embeddings[0], attention_mask, **kwargs)

    @takes_cache
    def _attend(
        self,
        hidden_states: Tensor,
        sinusoids: Tensor,
        mask: Tensor | None,
        cache: Any = None,
        key_ranges: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = project_heads(
            hidden_states, self.q_proj, self.k_proj, self.v_proj, width=self.head_dim
        )
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        options: dict[str, Any] = {
            "mask": mask, "scale": self.scaling, "window": self.window, "key_ranges": key_ranges,
            "dropout": self.attention_dropout if self.training else 0.0,
            "weights": weights_wanted(kwargs), "elsewhere": self.attend_elsewhere,
        }  # fmt: skip
        if self._in_pieces(sinusoids, options, k):
            parts = torch.arange(q.shape[1]).tensor_split(max(q.shape[1] // self.least_heads, 1))
            outputs = [
                self._attend_by(slice(int(own[0]), int(own[-1]) + 1), q, k, v, sinusoids, options)
                for own in parts
            ]
            return self.o_proj(torch.cat(outputs, 2).flatten(2)), None
        terms = transformer_xl_terms(
            self.relative_k_proj(sinusoids), self.bias_u, self.bias_v, scale=self.scaling
        )
        output, weights = attend(q + self.bias_u[:, None], k, v, terms, **options)
        return self.o_proj(output.flatten(2)), weights

    def _in_pieces(self, sinusoids: Tensor, options: dict[str, Any], k: Tensor) -> bool:
        """Whether to go through the heads in parts: without gradients, where tables are large."""
        # What wraps a projection (LoRA) or cuts it, or brings its weights when it is called, is
        # called as a whole.
        linear = self.relative_k_proj
        plain = type(linear) is nn.Linear and linear.weight.device == sinusoids.device
        few = torch.is_grad_enabled() or self.training or options["weights"]
        # An exported program is for all lengths: it has one way.
        if not plain or few or torch.compiler.is_exporting():
            return False
        return bool(sinusoids.shape[0] > _LONG_TABLE) and k.shape[1] == len(self.bias_u)

    def _attend_by(
        self,
        heads: slice,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinusoids: Tensor,
        options: dict[str, Any],
    ) -> Tensor:
        """The output of some heads, whose tables are all that is held of the tables."""
        linear, u, width = self.relative_k_proj, self.bias_u[heads], self.head_dim
        assert isinstance(linear, nn.Linear)
        rows = slice(heads.start * width, heads.stop * width)
        bias = None if linear.bias is None else linear.bias[rows]
        projected = nn.functional.linear(sinusoids, linear.weight[rows], bias)
        terms = transformer_xl_terms(projected, u, self.bias_v[heads], scale=self.scaling)
        q = q[:, heads] + u[:, None]
        output, _ = attend(q, k[:, heads], v[:, heads], terms, **options)
        return output


class PositionalEncoding(Adapted):
    """For `ParakeetEncoderRelPositionalEncoding`: one table for all sequences of the batch."""

    signatures = {"forward": ("self", "hidden_states")}

    #: From the number of tokens that are here to that of the whole sequence.
    whole_length: Callable[[Tensor], int] | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        one = hidden_states[:1]
        if self.whole_length is not None:
            # Its numbers are not looked at.
            one = one[:, :1].expand(-1, self.whole_length(hidden_states), -1)
        return super().forward(one).expand(hidden_states.shape[0], -1, -1)


class Subsampling(Adapted):
    """For `ParakeetEncoderSubsamplingConv2D`: it holds one piece of the audio at a time."""

    signatures = {"forward": ("self", "input_features", "attention_mask")}
    stride: int
    num_layers: int
    kernel_size: int

    @classmethod
    def applies(cls, module: Any) -> bool:
        # Wider kernels look further back.
        return (module.kernel_size, module.stride) == (3, 2)

    def forward(self, input_features: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return subsample_in_pieces(
            super().forward, input_features, attention_mask,
            factor=self.stride**self.num_layers, frames_before=1,
        )  # fmt: skip


class Encoder(Adapted):
    """For `ParakeetEncoder`: its forward with a mask `(b, 1, 1, j)`."""

    signatures = {
        "forward": ("self", "input_features", "attention_mask", "output_attention_mask", "kwargs"),
        "_get_output_attention_mask": ("self", "attention_mask", "target_length"),
    }
    _get_output_attention_mask: Any
    subsampling: nn.Module
    encode_positions: nn.Module
    layers: nn.ModuleList
    input_scale: float
    dropout: float
    dropout_positions: float
    layerdrop: float

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_features: Tensor,
        attention_mask: Tensor | None = None,
        output_attention_mask: bool = True,
        **kwargs: Any,
    ) -> ParakeetEncoderModelOutput:
        x = self.subsampling(input_features, attention_mask) * self.input_scale
        positions = self.encode_positions(x)
        x = dropout(x, p=self.dropout, training=self.training)
        if self.training and self.dropout_positions:
            positions = dropout(positions, p=self.dropout_positions)
        tokens = mask = None
        if attention_mask is not None:
            tokens = self._get_output_attention_mask(attention_mask, target_length=x.shape[1])
            mask = key_padding(tokens)
        for layer in self.layers:
            if self.training and self.layerdrop > 0.0 and torch.rand([]) < self.layerdrop:
                continue
            x = layer(x, attention_mask=mask, position_embeddings=positions, **kwargs)
        if tokens is not None:
            tokens = tokens.int() if output_attention_mask else None
        return ParakeetEncoderModelOutput(last_hidden_state=x, attention_mask=tokens)
