"""Relative keys and values of Shaw et al. (2018), clipped at a distance.

    s_ij = scale * q_i . (k_j + K[clip(j - i, -l, r)])        Shaw et al. 2018, eq. 4
    o_i  = sum_j softmax(s_i)_j * (v_j + V[clip(j - i, -l, r)])              eq. 3

- Offset: key minus query, as in the paper; row `n` belongs to offset `n - l`.
- Rows: `l + r + 1`, so `2k + 1` for one distance `k` (section 3.2). Everything further away to the
  right shares the last row, number `2k`. Some ports own `2k` rows and fold `+k` into `k - 1`.
- Scale: the same `1 / sqrt(d)` for content and position. Some ports leave the position unscaled.
- Beyond the table: clamps, by definition; `beyond="zero"` drops it instead, as VITS does.
- Elsewhere: `distance_embedding.weight` of w2v-BERT `(l + r + 1, d)` is `keys[0]` as it is. That of
  BERT's `relative_key` (transformers 4) `(2 n - 1, d)` counts query minus key and needs the
  sequence to fit: `weight.flip(0)` is `keys[0]`, for a distance of `n - 1`. `emb_rel_k` and
  `emb_rel_v` of VITS `(1, 2 k + 1, d)` are `keys` and `values`, with `beyond="zero"`; fairseq2's
  `rel_k_embed.weight` and `rel_v_embed.weight` are `keys[0]` and `values[0]`.
"""

from __future__ import annotations

from typing import Literal

import torch

from ..checks import check_count, check_flags
from .tables import LearnedTables

__all__ = ["Shaw"]


class Shaw(LearnedTables):
    """`K` and `V` with one row for each offset `-left..right`, which all further offsets share.

    Args:
        head_dim: width of one head.
        max_distance: k, in tokens; or `(left, right)`, e.g. `(k, 0)` under a causal mask.
        heads: 1, one table that all heads share (as in the paper), or one for each query head.
        keys: whether the scores have a relative term.
        values: whether the values have one; needs values of width `head_dim`.
        beyond: the row of a larger distance: the end row, or none (`"zero"`).
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is out of range, or neither keys nor values are wanted.

    >>> position = Shaw(32, max_distance=16)
    >>> tuple(position.keys.shape)
    (1, 33, 32)
    """

    def __init__(
        self,
        head_dim: int,
        max_distance: int | tuple[int, int],
        heads: int = 1,
        keys: bool = True,
        values: bool = True,
        *,
        beyond: Literal["clamp", "zero"] = "clamp",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_flags("Shaw", keys=keys, values=values)
        left, right = _distances(max_distance)
        if not keys and not values:
            raise ValueError("Shaw: keys or values must be True, got False for both")
        if beyond not in ("clamp", "zero"):
            raise ValueError(f"Shaw: beyond must be 'clamp' or 'zero', got {beyond!r}")
        super().__init__(
            head_dim, -left, right, heads=heads, keys=keys, values=values, beyond=beyond,
            device=device, dtype=dtype,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Width, offsets, heads, and which tables there are."""
        tables = " and ".join(name for name, _ in self.named_parameters())
        beyond = "" if self.beyond == "clamp" else f", beyond={self.beyond!r}"
        return f"{super().extra_repr()}, tables={tables}{beyond}"


def _distances(max_distance: int | tuple[int, int]) -> tuple[int, int]:
    pair = max_distance if isinstance(max_distance, tuple | list) else (max_distance,) * 2
    try:
        left, right = (check_count("Shaw", "max_distance", side, least=0) for side in pair)
    except ValueError:
        raise ValueError(
            f"Shaw: max_distance must be an integer >= 0 or (left, right), got {max_distance!r}"
        ) from None
    return left, right
