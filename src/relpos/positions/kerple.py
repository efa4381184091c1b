"""Kernelised relative positions, KERPLE (Chi et al. 2022): a bias of two learned numbers per head.

    s_ij = scale * q_i . k_j - r1 log(1 + r2 |j - i|)       "log"      Chi et al. 2022, section 4
    s_ij = scale * q_i . k_j - r1 |j - i|^r2                "power", with 0 < r2 <= 2

- Offset: the distance alone. The paper is causal; in both directions the bias is the same on
  either side.
- Rows: one per offset of the call, `i + j - 1`, or half as many with `causal=True`; computed.
- Scale: none on the bias.
- Beyond the table: nothing is; every offset has its own row, however long the sequence.
- Parameters: `log_r1` and `log_r2` are logarithms, `logit_r2` of the power is that of `r2 / 2`, so
  that both numbers stay within their range whatever the optimiser does; 2 itself is out of reach.
- `r2 = 1` and `r1` the slopes make ALiBi of the power.
- Elsewhere: the authors' code has `bias_p` and `bias_a` `(heads, 1, 1)`, which it clamps to at
  least 0.01 (and the exponent to at most 2) in each call. Of the logarithm `bias_p` is `r1` and
  `bias_a` is `r2`; of the power `bias_a` is `r1` and `bias_p` is `r2`: set `log_r1` to
  `bias_p.log().flatten()`, and so on. Its variants that multiply the scores are not here.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..checks import check_dtype
from .distance_bias import DistanceBias

__all__ = ["Kerple"]


class Kerple(DistanceBias):
    """`-r1 log(1 + r2 |j - i|)` or `-r1 |j - i|^r2`, with `r1` and `r2` learned for each head.

    Args:
        heads: query heads.
        kind: `"log"`, the paper's best, or `"power"`.
        causal: whether the table leaves out keys ahead of the query. Only right under a causal
            mask: a key ahead would be given the bias of offset 0.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if `heads` is below 1, or `kind` is another.

    >>> position = Kerple(8)
    >>> tuple(position.dense(3, 5).shape), bool((position.dense(5) <= 0).all())
    ((8, 3, 5), True)
    """

    log_r1: nn.Parameter

    def __init__(
        self,
        heads: int,
        kind: Literal["log", "power"] = "log",
        *,
        causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, causal=causal)
        if kind not in ("log", "power"):
            raise ValueError(f"Kerple: kind must be 'log' or 'power', got {kind!r}")
        check_dtype("Kerple", dtype)
        self.kind: Literal["log", "power"] = kind
        for name in ("log_r1", self._second):
            numbers = torch.empty(self.heads, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(numbers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw `r1` and `r2` as the authors do, uniformly, and at least 0.01.

        From 0 to 2 the factor of the logarithm and the exponent, from 0 to 1 the others.
        """
        with torch.no_grad():
            for name in ("log_r1", self._second):
                parameter = getattr(self, name)
                upper = 2 if (name == "log_r1") == (self.kind == "log") else 1
                drawn = torch.empty_like(parameter, dtype=torch.float32).uniform_(0, upper)
                drawn = drawn.clamp(min=0.01)
                parameter.copy_((drawn / 2).logit(1e-3) if name == "logit_r2" else drawn.log())

    @property
    def r1(self) -> Float[Tensor, "h"]:
        """The factor, in logits, in float32 at least."""
        return _wide(self.log_r1).exp()

    @property
    def r2(self) -> Float[Tensor, "h"]:
        """What the distance is multiplied by (per token), or its exponent, in float32 at least."""
        second = _wide(getattr(self, self._second))
        return second.exp() if self.kind == "log" else 2 * second.sigmoid()

    def at_distance(self, distance: Int64[Tensor, "r"]) -> Float[Tensor, "h r"]:
        """`-r1 log(1 + r2 distance)`, or `-r1 distance^r2`.

        Args:
            distance: in tokens, from 0 on.
        """
        r1, r2 = self.r1[:, None], self.r2[:, None]
        distance = distance.to(r1.dtype)
        return -r1 * (torch.log1p(r2 * distance) if self.kind == "log" else distance**r2)

    def head_axes(self) -> dict[str, int]:
        """Both numbers of each head."""
        return {"log_r1": 0, self._second: 0}

    def extra_repr(self) -> str:
        """Heads, kind and direction."""
        return f"heads={self.heads}, kind={self.kind!r}, causal={self.causal}"

    @property
    def _second(self) -> str:
        """The name of the parameter behind `r2`."""
        return "log_r2" if self.kind == "log" else "logit_r2"


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
