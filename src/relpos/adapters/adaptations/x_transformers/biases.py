"""x-transformers' biases by offset: T5's (Raffel et al. 2020), ALiBi (Press et al. 2022), computed.

    s_ij = scale * q_i . k_j + B[j - i]

Its layers ask one module for the bias of all pairs and hand it to every self-attention. Here the
module gives a row for each offset, `(h, 1, i + j - 1)`, from `1 - j` on, which for a single query
is the same, and what attends reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from ...adapted import Adapted
from ..buckets import rows_of_buckets
from .originals import LIBRARY

__all__ = ["BIASES", "Alibi", "DynamicBias", "OffsetBias", "T5Bias", "bias_of_pairs"]


class OffsetBias(Adapted):
    """A base of modules that give a bias for each offset."""

    signatures = {"forward": ("self", "i", "j")}
    #: What the report of `Layers` says.
    words: ClassVar[str] = ""
    device: torch.device

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        known = type(module).__module__ == LIBRARY and type(module).__qualname__ in BIASES
        return None if known else f"it must be one of {', '.join(BIASES)}"

    def forward(self, i: int, j: int) -> Float[Tensor, "h 1 r"]:
        return self.of_offsets(torch.arange(1 - j, i, device=self.device))[:, None]

    def of_offsets(self, offsets: Tensor) -> Float[Tensor, "h r"]:
        """The bias of each offset, in the order of key minus query.

        Args:
            offsets: `(r,)`, of integers.
        """
        raise NotImplementedError


class T5Bias(OffsetBias):
    """For `RelativePositionBias`."""

    words = "T5 bias"
    scale: float
    causal: bool
    num_buckets: int
    max_distance: int
    relative_attention_bias: nn.Module
    _relative_position_bucket: Callable[..., Tensor]

    def of_offsets(self, offsets: Tensor) -> Tensor:
        buckets = self._relative_position_bucket(
            offsets, causal=self.causal, num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )  # fmt: skip
        return rows_of_buckets(self.relative_attention_bias, buckets) * self.scale


class DynamicBias(OffsetBias):
    """For `DynamicPositionBias`, a network of query minus key."""

    words = "computed bias"
    log_distance: bool
    mlp: nn.ModuleList

    def of_offsets(self, offsets: Tensor) -> Tensor:
        behind = -offsets.float()
        if self.log_distance:
            behind = behind.sign() * (behind.abs() + 1).log()
        x = behind[:, None]
        for layer in self.mlp:
            x = layer(x)
        return x.mT


class Alibi(OffsetBias):
    """For `AlibiPositionalBias`, which makes and keeps the bias of all pairs."""

    words = "ALiBi"
    total_heads: int
    slopes: Tensor

    def of_offsets(self, offsets: Tensor) -> Tensor:
        bias = -offsets.abs() * self.slopes[:, 0]
        return pad(bias, (0, 0, 0, self.total_heads - len(bias)))


#: By the name of the original.
BIASES = {
    "RelativePositionBias": T5Bias,
    "DynamicPositionBias": DynamicBias,
    "AlibiPositionalBias": Alibi,
}


def bias_of_pairs(table: Float[Tensor, "h 1 r"], keys: int) -> Float[Tensor, "h i j"]:
    """The bias of all pairs, as the original has it.

    Args:
        table: a row for each offset.
        keys: j.
    """
    return table[:, 0].unfold(1, keys, 1).flip(1)
