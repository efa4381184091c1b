"""What DeBERTa's versions and SEW-D share: content to position and position to content.

    s_ij = (q_i . k_j + q_i . W_k P[x(j - i)] + k_j . W_q P[x(j - i)]) / sqrt(3d)

The encoder makes relative positions of all pairs, and a mask of them; here it makes neither.
`relpos.positions.Deberta` explains the formula, the buckets and the sign.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, ldexp, sqrt
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from ...summed_rows import picked_rows
from ...terms import OffsetTable, Terms
from ...traced_sizes import is_jit_tracing
from ..adapted import Adapted
from ..heads import split_heads
from ..masks import key_padding

__all__ = [
    "DisentangledAttention",
    "Encoder",
    "disentangled_scale",
    "disentangled_terms",
]


def disentangled_terms(
    positions: Float[Tensor, "p e"],
    *,
    keys: Callable[[Tensor], Tensor] | None,
    queries: Callable[[Tensor], Tensor] | None,
    heads: int,
    length: int,
    furthest: int,
    buckets: int,
) -> Terms:
    """The tables of the offsets of `length` tokens, up to where the index changes no more.

    Args:
        positions: P, twice as many rows as there are buckets, or distances.
        keys: W_k (content to position); None: the term is left out.
        queries: W_q (position to content); None: the term is left out.
        heads: h.
        length: of the sequence, in tokens.
        furthest: the largest distance that has an index of its own, in tokens.
        buckets: on one side; not above 0: each distance has its own index.
    """
    # `sym_min` makes no condition of a symbol, but takes no tensor, as a length is in a trace.
    least = min if is_jit_tracing() else torch.sym_min
    reach = cast(int, least(furthest, length))
    distances = -torch.arange(1 - reach, reach + 1, device=positions.device)
    span = furthest
    if buckets > 0:
        span = buckets
        distances = make_log_bucket_position(distances, buckets, furthest).long()
    index = (distances + span).clamp(0, 2 * span - 1)

    # Which is less would become a condition of an exported program, and either is right.
    is_short = not torch.compiler.is_exporting() and reach < span

    def table(project: Callable[[Tensor], Tensor]) -> OffsetTable:
        if is_short:
            rows = project(picked_rows(positions, index))
        else:
            rows = picked_rows(project(positions[: 2 * span]), index)
        return OffsetTable(split_heads(rows, width=rows.shape[-1] // heads), 1 - reach)

    return Terms(
        keys=None if keys is None else table(keys),
        queries=None if queries is None else table(queries),
    )


def disentangled_scale(width: int, *, terms: int) -> float:
    """`1 / sqrt(d (1 + terms))`, with the root rounded to float32, in which the originals take it.

    Args:
        width: d.
        terms: of positions.
    """
    fraction, exponent = frexp(sqrt(width * (1 + terms)))
    return 1 / ldexp(round(ldexp(fraction, 24)), exponent - 24)


class DisentangledAttention(Adapted):
    """A base of what stands in for a `DisentangledSelfAttention`."""

    scheme = "DeBERTa"
    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "output_attentions", "query_states",
            "relative_pos", "rel_embeddings",
        )
    }  # fmt: skip
    attention_head_size: int
    num_attention_heads: int
    max_relative_positions: int
    pos_att_type: list[str]
    pos_dropout: nn.Module

    def refuses_cut(self) -> str | None:
        return None

    def length_of(self, q: Tensor) -> int:
        """Tokens of the sequence, or more than there are rows for where it is on several devices.

        Args:
            q: `(b, h, i, d)`.
        """
        return q.shape[2] if self.attend_elsewhere is None else self.max_relative_positions

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.relative_attention and not {"c2p", "p2c"}.isdisjoint(module.pos_att_type)

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True


class Encoder(Adapted):
    """For the encoders: nothing is made of all pairs."""

    signatures = {
        "get_attention_mask": ("self", "attention_mask"),
        "get_rel_pos": ("self", "hidden_states", "query_states", "relative_pos"),
    }
    layer: nn.ModuleList

    def refuses_cut(self) -> str | None:
        convolves = getattr(self, "conv", None) is not None
        return "its convolution looks at the tokens beside" if convolves else None

    @classmethod
    def applies(cls, module: Any) -> bool:
        talking = any(
            getattr(layer.attention.self, "talking_head", False) for layer in module.layer
        )
        return module.relative_attention and not talking

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """`(b, 1, 1, j)` for a mask of tokens; one of pairs as it is."""
        if attention_mask.dim() > 2:
            original: Any = super()
            return original.get_attention_mask(attention_mask)
        return key_padding(attention_mask)

    def get_rel_pos(
        self,
        hidden_states: Tensor,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
    ) -> Tensor | None:
        """What was given; each adapted layer knows the others."""
        layers: Any = self.layer
        if all(isinstance(layer.attention.self, Adapted) for layer in layers):
            return relative_pos
        original: Any = super()
        return original.get_rel_pos(hidden_states, query_states, relative_pos)
