"""Relative positions of Transformer-XL (Dai et al. 2019), and of every Conformer.

    s_ij = scale * ((q_i + u) . k_j + (q_i + v) . W_r R[j - i])        Dai et al. 2019, section 3.3
         = scale * ((q_i + u) . (k_j + W_r R[j - i])) + scale * (v - u) . W_r R[j - i]

- Source: the terms (a) to (d) of section 3.3 are `q.k`, `q.W_r R`, `u.k` and `v.W_r R`; the second
  line is how they become queries `q + u`, a table of keys and a bias. The Conformer (Gulati et al.
  2020, section 2.1) uses the same without the causal mask.
- Offset: key minus query. The waves count query minus key, as in the paper: the row of an offset
  `o` is `R[o] = (sin(-o w_c), cos(-o w_c))` with `w_c = 10000^(-2c/e)`.
- Rows: one for each offset of the call, `i + j - 1`, or only those of the past with `causal=True`;
  W_r is learned, R is computed. A step of cached decoding computes and projects all j of them.
- Scale: `1 / sqrt(d)` on content and position alike. The bias is a part of the scores that
  attention itself does not scale, so another scale is given to this class, of which layers take it
  (`attention_scale`).
- Beyond the table: nothing is; every offset has its own row, however long the sequence.
- Elsewhere: espnet, NeMo, Wav2Vec2-Conformer and w2v-BERT have these names, `linear_pos.weight`,
  `pos_bias_u` and `pos_bias_v`; Parakeet in transformers has `relative_k_proj.weight`, `bias_u` and
  `bias_v`, and the paper's code `r_net.weight`, `r_w_bias` and `r_r_bias`, all of these shapes. The
  paper's code keeps all sines in the first half of the width (`layout="halves"`); the others
  alternate them with the cosines (`layout="interleaved"`). Some of these
  start `u` and `v` at zero as here, some from a normal or uniform distribution, and the paper's
  code shares them among the layers. Several Conformers divide by `sqrt(e)` instead of `sqrt(d)`,
  which is `scale=e**-0.5` here. espnet's older `legacy` form shifts its rows without a causal
  mask, so that keys ahead of a query get the rows of another.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_flags, check_floating, check_scale
from ..offsets import call_offsets
from ..terms import OffsetTable, Terms
from .base import Position
from .quantized import device_of, input_dtype
from .scales import scale_or_default
from .sinusoids import sinusoids
from .starts import start_of_queries

__all__ = ["TransformerXL"]

_LAYOUTS = ("interleaved", "halves")


class TransformerXL(Position):
    """`q + u`, `K = W_r R` for every offset of the call, and `B = scale * (v - u) . K`.

    Args:
        head_dim: width d of one head.
        heads: query heads h, each with its own rows.
        dim: width e of the sinusoids; None means `heads * head_dim`.
        layout: of the sinusoids: sines and cosines in turn, or all sines before all cosines.
        causal: whether only rows of the past are made. Only right under a causal mask: a key ahead
            would get the row of offset 0.
        biases: whether there are `u` and `v` (terms c and d).
        scale: that of the attention; None means `1 / sqrt(head_dim)`.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, `layout` is unknown or `scale` no positive number.

    >>> position = TransformerXL(16, heads=4)
    >>> q = torch.zeros(1, 4, 5, 16)
    >>> _, _, terms = position(q, q)
    >>> terms.keys.first, tuple(terms.keys.rows.shape), tuple(terms.bias.rows.shape)
    (-4, (4, 9, 16), (4, 9))
    """

    reads_query_start: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    keeps_content: ClassVar[bool] = True
    attention_scale: float
    pos_bias_u: nn.Parameter | None
    pos_bias_v: nn.Parameter | None

    def __init__(
        self,
        head_dim: int,
        heads: int,
        *,
        dim: int | None = None,
        layout: Literal["interleaved", "halves"] = "interleaved",
        causal: bool = False,
        biases: bool = True,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_flags("TransformerXL", causal=causal, biases=biases)
        self.head_dim = check_count("TransformerXL", "head_dim", head_dim)
        self.heads = check_count("TransformerXL", "heads", heads)
        inner = self.heads * self.head_dim
        self.dim = check_count("TransformerXL", "dim", inner if dim is None else dim)
        if layout not in _LAYOUTS:
            raise ValueError(
                f"TransformerXL: layout must be 'interleaved' or 'halves', got {layout!r}"
            )
        self.layout: Literal["interleaved", "halves"] = layout
        self.causal = bool(causal)
        check_dtype("TransformerXL", dtype)
        self.attention_scale = scale_or_default(check_scale("TransformerXL", scale), self.head_dim)
        self.linear_pos = nn.Linear(self.dim, inner, bias=False, device=device, dtype=dtype)
        for name in ("pos_bias_u", "pos_bias_v"):
            vectors = torch.empty(self.heads, self.head_dim, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(vectors) if biases else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W_r as `nn.Linear` does; `u` and `v` start at zero."""
        self.linear_pos.reset_parameters()
        for vectors in (self.pos_bias_u, self.pos_bias_v):
            if vectors is not None:
                nn.init.zeros_(vectors)

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        query_start: int | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q + u`, `k` unchanged, and the rows of all offsets between these queries and keys.

        Args:
            q: queries.
            k: keys.
            query_start: position of the first query; None means that the queries are the last.

        Raises:
            ShapeError: if `q` or `k` has another width, or `q` another number of heads.
            ValueError: if `query_start` is no integer.
        """
        check_floating("TransformerXL", "q", q, "b h i d", {"h": self.heads, "d": self.head_dim})
        check_floating("TransformerXL", "k", k, "b g j d", {"d": self.head_dim})
        i, j = q.shape[2], k.shape[2]
        start = start_of_queries("TransformerXL", query_start, i, j)
        first, last = call_offsets(start, i, j, causal=self.causal)
        keys = self._rows(first, last, q.device, q.dtype)
        if self.pos_bias_u is None or self.pos_bias_v is None:
            return q, k, Terms(keys=OffsetTable(keys, first))
        difference = self.attention_scale * (self.pos_bias_v - self.pos_bias_u)
        bias = (keys @ difference[:, :, None]).squeeze(2)
        terms = Terms(keys=OffsetTable(keys, first), bias=OffsetTable(bias, first))
        return q + self.pos_bias_u[:, None].to(q.dtype), k, terms

    def rows(
        self, first: int, last: int, *, dtype: torch.dtype | None = None
    ) -> Float[Tensor, "h r d"]:
        """`W_r R` of the offsets `first..last`, for each head.

        Args:
            first: the least offset, in tokens.
            last: the greatest offset, in tokens.
            dtype: what `linear_pos` takes, if it was quantized and nothing says it; None: torch's
                default.
        """
        return self._rows(first, last, device_of(self), dtype or torch.get_default_dtype())

    def _rows(
        self, first: int, last: int, device: torch.device, default: torch.dtype
    ) -> Float[Tensor, "h r d"]:
        # Query minus key, as the paper counts.
        back = torch.arange(-first, -last - 1, -1, device=device)
        dtype = input_dtype(self.linear_pos, self, default)
        waves = sinusoids(back, self.dim, layout=self.layout, dtype=dtype)
        return self.linear_pos(waves).unflatten(1, (self.heads, self.head_dim)).transpose(0, 1)

    def head_axes(self) -> dict[str, int]:
        """The projection, whose outputs are the heads one after the other, and the biases."""
        return {name: 0 for name, _ in self.named_parameters()}

    def extra_repr(self) -> str:
        """Widths, heads, layout, and non-default arguments."""
        default = scale_or_default(None, self.head_dim)
        parts = [f"head_dim={self.head_dim}, heads={self.heads}, dim={self.dim}"]
        parts.append(f"layout={self.layout!r}")
        parts += ["causal=True"] if self.causal else []
        parts += ["biases=False"] if self.pos_bias_u is None else []
        parts += [f"scale={self.attention_scale:g}"] if self.attention_scale != default else []
        return ", ".join(parts)
