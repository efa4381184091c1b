"""The input projections of `MultiheadAttention`, packed or apart, under torch's names."""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from ..checks import check_count, check_floating

__all__ = ["InputProjections"]


class InputProjections(nn.Module):
    """`x W + b` for queries, keys and values, as heads: a base of `MultiheadAttention`.

    Where all three have the width of the queries, their weights are one `in_proj_weight`, else
    `q_proj_weight`, `k_proj_weight` and `v_proj_weight`; their biases are one `in_proj_bias`.

    Args:
        embed_dim: width e of the queries.
        num_heads: query heads h.
        num_kv_heads: key and value heads g; None means h.
        head_dim: width d of one head; None means `e / h`.
        kdim: width of the keys; None means e.
        vdim: width of the values; None means e.
        bias: whether there are biases.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is out of range, or the heads do not divide the width.
    """

    in_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None,
        head_dim: int | None,
        kdim: int | None,
        vdim: int | None,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.embed_dim = _count("embed_dim", embed_dim)
        self.num_heads = _count("num_heads", num_heads)
        self.num_kv_heads = _count("num_kv_heads", num_kv_heads, default=num_heads)
        self.kdim = _count("kdim", kdim, default=embed_dim)
        self.vdim = _count("vdim", vdim, default=embed_dim)
        self.head_dim = self._width_of_head(head_dim)

        heads, inner = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self._sizes = (heads, inner, inner)
        packed = self.kdim == self.vdim == self.embed_dim
        shapes = {
            "in_proj_weight": (sum(self._sizes), self.embed_dim) if packed else None,
            "q_proj_weight": None if packed else (heads, self.embed_dim),
            "k_proj_weight": None if packed else (inner, self.kdim),
            "v_proj_weight": None if packed else (inner, self.vdim),
            "in_proj_bias": (sum(self._sizes),) if bias else None,
        }
        for name, shape in shapes.items():
            tensor = None if shape is None else torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name, None if tensor is None else nn.Parameter(tensor))

    def project_queries(self, x: Float[Tensor, "... e"]) -> Float[Tensor, "... hd"]:
        """`x W_q + b_q`, for a position that shares this projection.

        Args:
            x: whatever has the width of the queries.
        """
        return self._linear(0, x)

    def project_keys(self, x: Float[Tensor, "... kdim"]) -> Float[Tensor, "... gd"]:
        """`x W_k + b_k`, for a position that shares this projection.

        Args:
            x: whatever has the width of the keys.
        """
        return self._linear(1, x)

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, *, self_attention: bool
    ) -> tuple[Tensor, ...]:
        """Queries `(b, h, i, d)`, keys and values `(b, g, j, d)`."""
        if self.in_proj_weight is not None and self_attention:
            projected = linear(query, self.in_proj_weight, self.in_proj_bias)
            projected = projected.split(self._sizes, dim=-1)
        else:
            projected = [self._linear(n, x) for n, x in enumerate((query, key, value))]
        return tuple(x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in projected)

    def _linear(self, part: int, x: Tensor) -> Tensor:
        """`x` through the projection of the queries (0), keys (1) or values (2)."""
        bias = None if self.in_proj_bias is None else self.in_proj_bias.split(self._sizes)[part]
        if self.in_proj_weight is not None:
            return linear(x, self.in_proj_weight.split(self._sizes)[part], bias)
        weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[part]
        return linear(x, cast(Tensor, weight), bias)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        name = "MultiheadAttention"
        check_floating(name, "query", query, "b i e", {"e": self.embed_dim})
        b, j = query.shape[0], key.shape[1] if key.ndim == 3 else 0
        check_floating(name, "key", key, "b j kdim", {"b": b, "kdim": self.kdim})
        check_floating(name, "value", value, "b j vdim", {"b": b, "j": j, "vdim": self.vdim})

    def _width_of_head(self, head_dim: int | None) -> int:
        if head_dim is None and self.embed_dim % self.num_heads:
            raise ValueError(
                f"MultiheadAttention: embed_dim must be a multiple of num_heads={self.num_heads} "
                f"without a head_dim, got {self.embed_dim}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                "MultiheadAttention: num_kv_heads must divide "
                f"num_heads={self.num_heads}, got {self.num_kv_heads}"
            )
        return _count("head_dim", head_dim, default=self.embed_dim // self.num_heads)


def _count(name: str, value: int | None, *, default: int | None = None) -> int:
    return check_count("MultiheadAttention", name, default if value is None else value)
