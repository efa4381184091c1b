"""The bucketed bias of T5 (Raffel et al. 2020): one learned scalar per head and bucket.

    s_ij = scale * q_i . k_j + B[bucket(j - i)]              Raffel et al. 2020, section 2.1

- Offset: key minus query, as in the paper's code. `relpos.offsets.t5_buckets` is the map.
- Rows: the parameter has one per bucket. Attention is given one per offset, from there to where
  the last bucket starts (on both sides, or behind the query only).
- Scale: the bias has none. T5 has none on the content either (`attention(..., scale=1)`): its
  initial weights contain the `1 / sqrt(d)`. That is the caller's decision.
- Beyond the table: clamps, by definition, since the last bucket has no end.
- Encoders are bidirectional and have half of the buckets on each side. Decoders have all of them
  behind the query (`bidirectional=False`); keys ahead, which a causal mask hides, get bucket 0.
- Cross-attention has no bias: a layer over the encoder's output has no position.
- Layers share one table in T5; give each of them the same module.
- Elsewhere: the parameter is called `relative_attention_bias.weight` and is `(buckets, heads)`,
  this one transposed. Bucket `buckets // 2` of a bidirectional table, "ahead by 0", belongs to
  no offset, there as here.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_flags
from ..offsets import t5_buckets
from ..summed_rows import picked_rows
from ..terms import OffsetTable
from .base import BiasPosition
from .derived import derived

__all__ = ["T5Bias"]


class T5Bias(BiasPosition):
    """`B[bucket(j - i)]`, buckets that widen with the logarithm of the distance.

    Args:
        heads: query heads, with a table each; 1 is one table that all heads share.
        buckets: number of buckets, of both sides together.
        max_distance: the distance from which all keys share a bucket, in tokens.
        bidirectional: whether keys ahead have buckets of their own (encoders).
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is out of range.

    >>> position = T5Bias(8)
    >>> tuple(position.bias.shape), tuple(position.dense(3, 200).shape)
    ((8, 32), (8, 3, 200))
    """

    def __init__(
        self,
        heads: int,
        buckets: int = 32,
        max_distance: int = 128,
        *,
        bidirectional: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_flags("T5Bias", bidirectional=bidirectional)
        self.heads = check_count("T5Bias", "heads", heads)
        self.buckets = check_count("T5Bias", "buckets", buckets, least=4 if bidirectional else 2)
        exact = self.buckets // (4 if bidirectional else 2)
        self.max_distance = check_count("T5Bias", "max_distance", max_distance, least=exact + 1)
        self.bidirectional = bidirectional
        check_dtype("T5Bias", dtype)
        self.bias = nn.Parameter(torch.empty(self.heads, self.buckets, device=device, dtype=dtype))
        self.first = -self._reach()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the bias from a normal distribution around 0 with standard deviation 0.02."""
        nn.init.normal_(self.bias, std=0.02)

    def table(self, i: int, j: int) -> OffsetTable:
        """One row per offset up to the start of the last bucket, whatever the lengths are.

        Args:
            i: number of queries.
            j: number of keys.
        """
        buckets = derived(self, "_buckets_at", self._buckets_at_offsets, self.bias.device)
        return OffsetTable(picked_rows(self.bias.mT, buckets).mT.contiguous(), self.first)

    def head_axes(self) -> dict[str, int]:
        """The table of each head."""
        return {} if self.heads == 1 else {"bias": 0}

    def extra_repr(self) -> str:
        """Heads, buckets and direction."""
        return (
            f"heads={self.heads}, buckets={self.buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )

    def _reach(self) -> int:
        """A distance that is in the last bucket, the first one or the one after it.

        `t5_buckets` rounds in float32, which at a boundary may decide either way.
        """
        side = self.buckets // 2 if self.bidirectional else self.buckets
        exact = side // 2
        share = (side - 1 - exact + 1e-4) / (side - exact)
        start = ceil(exact * (self.max_distance / exact) ** share)
        return min(start, self.max_distance)

    def _buckets_at_offsets(self) -> Tensor:
        """The bucket of each offset for which there is a row."""
        last = -self.first if self.bidirectional else 0
        at = torch.arange(self.first, last + 1, device="cpu")
        return t5_buckets(at, self.buckets, self.max_distance, bidirectional=self.bidirectional)
