"""XPos (Sun et al. 2022): rotary positions whose scores fade with the distance.

    s_ij = scale * sum_c z_c^((i - j) / B) * (q_i[c] . R_(j - i) k_j[c])    Sun et al. 2022, eq. 12
    z_c  = (2c / rotary_dim + gamma) / (1 + gamma)

- Pair `c` of a query is multiplied by `z_c^(i / B)` and that of a key by `z_c^(-j / B)`; what
  turns fastest fades fastest. Source: section 3.2 and algorithm 1, with `gamma = 0.4`, `B = 512`.
- For causal attention: a key ahead of its query would grow with the distance.
- Positions: as in `Rotary`. Those of the factors count from the middle of 0 and the end, where the
  authors' code has them: the scores are the same, and the numbers stay small for longer.
- Pairs lie beside each other, as in the authors' code; `interleaved=False` for half-split ones.
- Scale: that of the attention.
- Beyond: nothing clamps. Factors grow with the length, to `z_0^(-n / 2B)` for `n` tokens, so a
  length that would leave the range of the dtype is refused: about 30000 tokens in float32 and
  bfloat16, 5600 in float16, and in proportion to `scale_base`.
- Elsewhere: torchscale's `XPOS` and x-transformers' `RotaryEmbedding(use_xpos=True)` agree with
  this. A cache that holds keys with the factors of their own call does not, unless all calls count
  from the same middle; here a cache holds keys as they were projected.
"""

from __future__ import annotations

from math import inf, log, log1p
from numbers import Real
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import check_count, check_flags
from ..terms import Terms
from .angles import angle_dtype, angles_at, frequencies
from .base import Position
from .rotary import check_rotary_dim, check_rotary_inputs, check_theta
from .rotation import rotate

__all__ = ["XPos"]


class XPos(Position):
    """`q` and `k` turned, `q` fading and `k` growing with the position; for causal attention.

    Args:
        head_dim: width of one head.
        theta: the base of the frequencies.
        scale_base: B, in tokens: the larger, the slower scores fade.
        gamma: above 0; the larger, the more alike the pairs fade.
        interleaved: whether pairs lie beside each other, or half the width apart.
        rotary_dim: how many numbers of a head are turned, the first ones; None means all.

    Raises:
        ValueError: if an argument is out of range.

    >>> q = k = torch.ones(1, 1, 5, 8)
    >>> faded, grown, _ = XPos(8)(q, k)
    >>> scores = (faded @ grown.mT)[0, 0]
    >>> bool(scores[4, 0] < scores[4, 4]), torch.allclose(scores[4, 3], scores[2, 1])
    (True, True)
    """

    reads_query_start: ClassVar[bool] = True
    reads_key_start: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    only_products_hold: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        theta: float = 10000.0,
        *,
        scale_base: float = 512.0,
        gamma: float = 0.4,
        interleaved: bool = True,
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_flags("XPos", interleaved=interleaved)
        self.head_dim = check_count("XPos", "head_dim", head_dim)
        self.theta = check_theta("XPos", theta)
        wanted = self.head_dim if rotary_dim is None else rotary_dim
        self.rotary_dim = check_rotary_dim("XPos", wanted, self.head_dim)
        for name, value in (("scale_base", scale_base), ("gamma", gamma)):
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not number or not 0 < float(value) < inf:
                raise ValueError(f"XPos: {name} must be a positive number, got {value!r}")
        self.scale_base, self.gamma = float(scale_base), float(gamma)
        self.interleaved = interleaved

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        query_start: int | None = None,
        key_start: int = 0,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` turned and multiplied, in their dtype, and no terms.

        Args:
            q: queries.
            k: keys.
            query_start: position of the first query; None means that the queries are the last.
            key_start: position of the first key.

        Raises:
            ShapeError: if `q` or `k` has another width, or is not floating point.
            ValueError: if positions reach further than the dtype has range for, or `query_start`
                or `key_start` is no integer.
        """
        start, key_start, end = check_rotary_inputs(
            "XPos", q, k, head_dim=self.head_dim, query_start=query_start, key_start=key_start
        )
        # `sym_min`, since lengths may be symbols of `torch.compile`.
        begin = cast(int, torch.sym_min(start, 0))
        # The same for parts of a sequence: of the end alone, which all parts know.
        middle, turned = end // 2, []
        self._check_range(q.dtype, begin, middle, end)
        for x, first, sign in ((q, start, 1), (k, key_start, -1)):
            at = torch.arange(first, first + x.shape[2], device=x.device).to(angle_dtype(x.device))
            fading = self._decay(x.device) ** (sign * (at - middle)[:, None] / self.scale_base)
            angles = angles_at(at, frequencies(self.theta, self.rotary_dim, device=x.device))
            turned.append(rotate(x, angles, interleaved=self.interleaved, factor=fading))
        return turned[0], turned[1], Terms()

    def head_axes(self) -> dict[str, int]:
        """No parameter differs from head to head."""
        return {}

    def extra_repr(self) -> str:
        """Width, base and non-default arguments."""
        part = "" if self.rotary_dim == self.head_dim else f", rotary_dim={self.rotary_dim}"
        pairs = "" if self.interleaved else ", interleaved=False"
        fading = f"scale_base={self.scale_base:g}, gamma={self.gamma:g}"
        return f"head_dim={self.head_dim}, theta={self.theta:g}, {fading}{part}{pairs}"

    def _decay(self, device: torch.device) -> Float[Tensor, "c"]:
        """`z`, from that of the pair that turns fastest on."""
        even = torch.arange(0, self.rotary_dim, 2, device=device, dtype=angle_dtype(device))
        return (even / self.rotary_dim + self.gamma) / (1 + self.gamma)

    def _check_range(self, dtype: torch.dtype, begin: int, middle: int, end: int) -> None:
        # An exported program is one for all lengths: it has no place for an error.
        if torch.compiler.is_exporting():
            return
        work = torch.promote_types(dtype, torch.float32)
        # Products of both factors, and a factor times a number below 64, are to be finite.
        room = min(log(torch.finfo(dtype).max / 64), log(torch.finfo(work).max) / 2 - log(1024))
        # `log1p`, and a limit, for a large `gamma` or `scale_base`: nothing fades then.
        longest = int(min(2 * self.scale_base * room / log1p(1 / self.gamma), 1 << 60))
        if end - begin > longest:
            raise ValueError(
                f"XPos: q and k must span at most {longest} positions in {dtype} with scale_base="
                f"{self.scale_base:g}, got {end - begin}; a larger scale_base takes more"
            )
        if middle - begin > longest // 2:
            raise ValueError(
                f"XPos: query_start must be at least {middle - longest // 2} in {dtype} with "
                f"scale_base={self.scale_base:g}, got {begin}; a larger scale_base takes more"
            )
