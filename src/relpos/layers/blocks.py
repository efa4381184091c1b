"""Transformer blocks, composed from an attention layer that is given to them."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from .cache import KeyValueCache
from .multihead import MultiheadAttention

__all__ = ["DecoderBlock"]


class DecoderBlock(nn.Module):
    """`x + A(norm(x))`, then `x + MLP(norm(x))`: pre-norm and causal (Radford et al. 2019).

    Args:
        attention: causal self-attention over the width of the block.
        hidden: width of the MLP; None means four times that of the block.
        dropout: probability that an entry of what is added to `x` is dropped in training.

    >>> block = DecoderBlock(MultiheadAttention(8, 2))
    """

    def __init__(
        self, attention: MultiheadAttention, *, hidden: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        width = attention.embed_dim
        hidden = 4 * width if hidden is None else hidden
        self.attention_norm = nn.LayerNorm(width)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b i e"], cache: KeyValueCache | None = None
    ) -> Float[Tensor, "b i e"]:
        """The next residual stream.

        Args:
            x: residual stream.
            cache: this layer's tokens before these.
        """
        y = self.attention_norm(x)
        y, _ = self.attention(y, y, y, need_weights=False, is_causal=True, cache=cache)
        x = x + self.dropout(y)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
