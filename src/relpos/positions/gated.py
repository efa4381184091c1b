"""A bias that each token turns up or down, as WavLM does with T5's (Chen et al. 2022).

    s_ij = scale * q_i . k_j + g_i B[j - i]
    g_i  = 2 + a_i (c r_i - 1),   a_i = sigmoid(x_i . w_a + b_a),  r_i = sigmoid(x_i . w_r + b_r)

- Source: Chen et al. 2022, "gated relative position bias": `B + u B + (1 - u) c r B` with an update
  gate `u` and a reset gate `r`; `a = 1 - u`, which is the sigmoid of the other sign. `x_i` is the
  head's share of the layer's input, as in the authors' code (the paper writes the query), and `c`
  a number per head. The heads share the gates' weights.
- Terms: a gate makes the bias depend on the query, so it is the `keys` term with vectors of width
  1, times `q_rel = g`. Offset, rows and what is beyond the table are those of the bias.
- Scale: none on the bias. The op scales the `keys` term, so the rows are divided by it. Another
  scale than `1 / sqrt(d)` is given to this class, of which layers take it (`attention_scale`).
- Elsewhere: WavLM's `gru_rel_pos_linear` has eight outputs, summed in fours into `gates`: the first
  four are `a`, the last four `r`, so `gates.weight = linear.weight.view(2, 4, d).sum(1)`, and
  likewise the biases. `gru_rel_pos_const` `(1, h, 1, 1)` is `reset`. The table of its first layer,
  `rel_attn_embed.weight` `(buckets, heads)`, is transposed in `bias.bias`; its layers share it, and
  have gates of their own.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_floating, check_like_parameter, check_scale
from ..terms import OffsetTable, Terms
from .base import BiasPosition, Position
from .handover import apply_position, check_position
from .scales import scale_or_default

__all__ = ["GatedBias"]

_RULE = "be a module whose only term is a bias over offsets (T5Bias, Alibi, a BiasPosition, ...)"


class GatedBias(Position):
    """`g_i B[j - i]`, a bias times a gate that reads the query's token.

    Args:
        bias: the scheme whose bias is gated: T5Bias, Alibi, or any module whose only term is a bias
            over offsets; layers may share one.
        heads: query heads h.
        head_dim: width of a head's share of the input, `e / h`.
        scale: the attention's scale; None means `1 / sqrt(d)`, so then give the attention none.
        device: of the gates' parameters.
        dtype: of the gates' parameters.

    Raises:
        TypeError: if `bias` is no such scheme.
        ValueError: if a size is below 1, or the scale not positive.

    >>> from relpos.positions import T5Bias
    >>> table = T5Bias(12, buckets=320, max_distance=800)
    >>> layers = [GatedBias(table, 12, head_dim=64) for _ in range(2)]
    """

    reads_input: ClassVar[bool] = True
    reads_query_start: ClassVar[bool] = True
    keeps_content: ClassVar[bool] = True

    def __init__(
        self,
        bias: nn.Module,
        heads: int,
        head_dim: int,
        *,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        # Whether any other module has a bias is only known once it is called.
        other = isinstance(bias, Position) and not isinstance(bias, BiasPosition)
        if not isinstance(bias, nn.Module) or other:
            raise TypeError(f"GatedBias: bias must {_RULE}, got {type(bias).__name__}")
        check_position("GatedBias", "bias", bias)
        self.bias = bias
        self.heads = check_count("GatedBias", "heads", heads)
        self.head_dim = check_count("GatedBias", "head_dim", head_dim)
        self.shift_invariant = getattr(bias, "shift_invariant", False)
        self.reads_content = getattr(bias, "reads_content", True)
        self.attention_scale = check_scale("GatedBias", scale)
        self.assumes_default_scale = scale is None
        check_dtype("GatedBias", dtype)
        self.gates = nn.Linear(self.head_dim, 2, device=device, dtype=dtype)
        self.reset = nn.Parameter(torch.empty(self.heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gates as `nn.Linear` draws them, and `c = 1`: the gate is 1.75 where they are half open.

        The bias, which others may share, is left as it is.
        """
        self.gates.reset_parameters()
        nn.init.ones_(self.reset)

    def gate(self, x: Float[Tensor, "b i e"]) -> Float[Tensor, "b h i"]:
        """`g`, the factor on each query's bias.

        Args:
            x: the layer's input.

        Raises:
            ShapeError: if `x` is not `heads * head_dim` wide, or of another dtype or device.
        """
        check_like_parameter(
            "GatedBias", "x", x, self.reset, "b i e", {"e": self.heads * self.head_dim}
        )
        shares = x.unflatten(2, (self.heads, self.head_dim)).transpose(1, 2)
        update, reset = self.gates(shares).sigmoid().unbind(-1)
        return 2 + update * (self.reset[:, None] * reset - 1)

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        x: Float[Tensor, "b i e"],
        *,
        query_start: int | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` unchanged, and the bias as a table that `q_rel`, the gate, multiplies.

        Args:
            q: queries.
            k: keys.
            x: the layer's input, from which the queries were made.
            query_start: position of the first query; None means that the queries are the last.

        Raises:
            ShapeError: if `q` has another number of heads, or `x` does not fit.
            TypeError: if `bias` has other terms than a bias over offsets.
        """
        check_floating("GatedBias", "q", q, "b h i d", {"h": self.heads})
        check_floating("GatedBias", "k", k, "b g j d")
        table = self._table(q, k, query_start)
        gate = self.gate(x)[..., None]
        scale = scale_or_default(self.attention_scale, q.shape[3])
        keys = table.map(lambda rows: rows[..., None] / scale)
        return q, k, Terms(keys=keys, q_rel=gate)

    def extra_repr(self) -> str:
        """Heads, width and scale."""
        own = self.attention_scale
        scale = "" if own is None else f", scale={own:g}"
        return f"heads={self.heads}, head_dim={self.head_dim}{scale}"

    def _table(self, q: Tensor, k: Tensor, query_start: int | None) -> OffsetTable:
        """The bias before the gate."""
        new_q, new_k, terms = apply_position(self.bias, q, k, query_start=query_start)
        found = list(terms.tables) if isinstance(terms, Terms) else ["a grid"]
        found += [] if new_q is q and new_k is k else ["other queries or keys"]
        if not isinstance(terms, Terms) or terms.bias is None or found != ["bias"]:
            raise TypeError(
                f"GatedBias: bias must {_RULE}, got {' and '.join(found) or 'nothing'} from "
                f"{type(self.bias).__name__}"
            )
        return terms.bias
