"""Inkling (Thinking Machines 2026): queries mix profiles of a bias over the distance to the key.

    s_ij = scale * q_i . k_j + r_i . P[i - j]  for 0 <= i - j < extent, and without P beyond

The original makes that bias for all pairs; here the coefficients r go to the attention function in
its place. All else (convolutions and their cache, norms, temperatures, gates) is the original's
forward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ...traced_sizes import plain_size
from ..adapted import Adapted
from ..cache_argument import takes_cache
from ..implementation import is_adapted_name
from .alibi import first_query

__all__ = ["Attention", "BaseAttention", "RelativeLogits"]


class RelativeLogits(Adapted):
    """For `InklingRelativeLogits`: of more than one query the coefficients, `(1, b, h, i, d_rel)`.

    Temperatures of the queries, `(1, 1, i, 1)`, are multiplied to them as to a bias. Called with
    None, it gives the profiles: what has weights come and go does so when a module is called.
    """

    signatures = {"forward": ("self", "relative_states", "query_positions", "key_positions")}
    together = True
    proj: nn.Parameter

    def forward(
        self,
        relative_states: Tensor | None = None,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
    ) -> Tensor:
        if relative_states is None or query_positions is None:
            return self.proj.clone()
        if query_positions.shape[0] == 1:
            return super().forward(relative_states, query_positions, key_positions)
        return relative_states.transpose(1, 2)[None]


class BaseAttention(Adapted):
    """A base for the attention modules of both Inklings."""

    scheme = "relative logits"
    together = True
    weights_dropout = "attention_dropout"
    masks_by_config = True
    causal_by_module = True
    config: Any
    layer_idx: int
    scaling: float

    def profiles(self) -> Tensor:
        """P, `(d_rel, extent)`."""
        raise NotImplementedError

    def first_query(self, x: Tensor, past: Any, *, later: int = 0) -> int | None:
        """The position of the first query, in tokens; None where it does not matter.

        Args:
            x: `(b, i, e)`, the input.
            past: the cache, before it is updated, or None.
            later: how many layers of the cache behind its own hold the keys.

        Raises:
            ValueError: if another implementation was chosen since `adapt`.
        """
        name = self.config._attn_implementation
        if not is_adapted_name(name):
            # Its function would not know what stands in for the bias.
            raise ValueError(
                f"adapt: attn_implementation must be chosen before, got {name!r} since; "
                "restore(model), choose, and adapt again"
            )
        return first_query(past, queries=x.shape[1], layer=self.layer_idx + later)

    def bias_terms(self, position_bias: Tensor) -> Terms | None:
        if position_bias.ndim != 5:
            return None
        rows = self.profiles().T.flip(0)[None].to(position_bias.dtype) / self.scaling
        table = OffsetTable(rows, 1 - plain_size(rows, 1), beyond="zero")
        return Terms(keys=table, q_rel=position_bias[0])


class Attention(BaseAttention):
    """For `InklingAttention`."""

    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "conv_mask", "cache", "kwargs",
        )
    }  # fmt: skip

    rel_logits_proj: nn.Module

    def profiles(self) -> Tensor:
        return self.rel_logits_proj(None)

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        conv_mask: Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        start = self.first_query(hidden_states, cache)
        return super().forward(
            hidden_states, attention_mask, conv_mask, cache, query_start=start, **kwargs
        )
