"""Relative global attention of Huang et al. (2018) as the posts about it spell it.

    o = dropout(concat_h softmax((q k^T + skew(q Er^T)) / sqrt(d_head)) v)       eq. 3, causal

The class of Jake Tae's post "Relative Positional Encoding" (2021): same arguments, parameter names
and numbers, for checkpoints and code written against it. Two differences: sequences longer than
`max_len` clamp to the first row of `Er` instead of failing, and no `max_len x max_len` mask is
kept (one in a state dict is passed over). As there, the heads share `Er`, there is no output
projection, and dropout acts on the output instead of on the weights. New code has
`MultiheadAttention(..., position=Huang(...))`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_floating
from ..layers.cache import KeyValueCache, rollback_on_error
from ..ops import attention
from ..terms import OffsetTable, Terms

__all__ = ["RelativeGlobalAttention"]


class RelativeGlobalAttention(nn.Module):
    """Causal self-attention with one learned row of `Er` for each offset `-(max_len - 1)..0`.

    Args:
        d_model: width e of input and output.
        num_heads: heads h; each is `e / h` wide.
        max_len: rows of `Er`, in tokens; the last row belongs to offset 0.
        dropout: probability that an output entry is dropped in training.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if the heads do not divide the width, or a size is below 1.

    >>> layer = RelativeGlobalAttention(8, num_heads=2, max_len=4)
    >>> layer(torch.zeros(1, 6, 8)).shape
    torch.Size([1, 6, 8])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_len: int = 1024,
        dropout: float = 0.1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = "RelativeGlobalAttention"
        d_model = check_count(name, "d_model", d_model)
        num_heads = check_count(name, "num_heads", num_heads)
        max_len = check_count(name, "max_len", max_len)
        check_dtype(name, dtype)
        if d_model % num_heads:
            raise ValueError(
                f"RelativeGlobalAttention: d_model must be a multiple of num_heads={num_heads}, "
                f"got {d_model}"
            )
        self.d_model, self.num_heads, self.max_len = d_model, num_heads, max_len
        self.key = nn.Linear(d_model, d_model, device=device, dtype=dtype)
        self.value = nn.Linear(d_model, d_model, device=device, dtype=dtype)
        self.query = nn.Linear(d_model, d_model, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        rows = torch.empty(max_len, d_model // num_heads, device=device, dtype=dtype)
        self.Er = nn.Parameter(rows)
        self.register_load_state_dict_pre_hook(_drop_mask)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw `Er` from a normal distribution of variance 1, as the post does."""
        nn.init.normal_(self.Er)

    def forward(
        self, x: Float[Tensor, "b i e"], *, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "b i e"]:
        """What each token reads from itself and those before it.

        Args:
            x: input.
            cache: holds the tokens before these, to which these are added.

        Raises:
            ShapeError: if `x` is not `(b, i, d_model)`.
        """
        check_floating("RelativeGlobalAttention", "x", x, "b i e", {"e": self.d_model})
        q, k, v = (
            project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        terms = Terms(keys=OffsetTable(self.Er[None], first=1 - self.max_len))
        with rollback_on_error(cache):
            if cache is not None:
                cache.claim(self)
                k, v = cache.append(k, v)
            heads = attention(q, k, v, terms, causal=True)
        return self.dropout(heads.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        """Width, heads and rows."""
        return f"d_model={self.d_model}, num_heads={self.num_heads}, max_len={self.max_len}"


def _drop_mask(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: object) -> None:
    state_dict.pop(f"{prefix}mask", None)
