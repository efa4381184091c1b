"""A decoder language model whose position scheme is one word of its configuration.

A pre-norm transformer (Radford et al. 2019) with GELU. The scheme is the only thing that changes
between two models: with the same seed, every other parameter starts with the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from relpos.checks import check_shape
from relpos.layers import DecoderBlock, KeyValueCache, MultiheadAttention
from relpos.layers.cache import rollback_on_error

from .configured import ConfiguredModel
from .positions import POSITIONS
from .transformer import TransformerConfig, draw_blocks

__all__ = ["DecoderConfig", "DecoderLM"]


@dataclass(frozen=True)
class DecoderConfig(TransformerConfig):
    """Everything that decides a `DecoderLM`'s shape.

    Args:
        vocabulary: number of tokens.
        width: of the residual stream.
        layers: number of blocks.
        heads: attention heads of a block; they divide the width.
        hidden: width of a block's MLP; None means `4 * width`.
        dropout: probability in `0 <= dropout < 1`, of embeddings, weights and residual branches.
        position: a name in `POSITIONS`: `"huang"`, `"shaw"` (keys and values) and others in every
            block's attention, `"absolute"` or `"sinusoidal"` at the input, or `"none"`.
        max_length: rows of the Huang and absolute tables, in tokens; longer inputs clamp.
        max_distance: the farthest offset with a row of its own, in tokens; None means 64 for
            `"shaw"`, and every offset of `max_length` for other tables.
        random_start: whether, in training, each sequence begins anywhere in the `max_length`
            positions at the input, so that all of them are trained on shorter sequences (as Kiyono
            et al. 2021, section 3, whose starts are uniform; here a sequence that would hang over
            an end is moved to it, so that the end is trained as often as the middle).
        shared_heads: whether the heads of a block share one table of relative positions.
        attention_window: how far back a token sees in each block, in tokens, itself not counted;
            None: to the beginning. While tokens are drawn, a cache holds no more than these.

    Raises:
        ValueError: if a value is out of range or `position` is unknown.

    >>> DecoderConfig(vocabulary=100, width=64).head_dim
    16
    """

    vocabulary: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    hidden: int | None = None
    dropout: float = 0.1
    position: str = "huang"
    max_length: int = 512
    max_distance: int | None = None
    random_start: bool = False
    shared_heads: bool = True
    attention_window: int | None = None


class DecoderLM(ConfiguredModel):
    """Logits of the next token, from the tokens up to each position.

    The output head has a matrix of its own: small vocabularies make it cheap, and a tied one would
    start by predicting the token that it has just read.

    Args:
        config: the model's shape.

    >>> import torch
    >>> model = DecoderLM(DecoderConfig(vocabulary=7, width=8, layers=1, heads=2))
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 7])
    """

    config_class: ClassVar = DecoderConfig
    config: DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.dropout = nn.Dropout(config.dropout)
        window = None if config.attention_window is None else (config.attention_window, 0)
        attentions = [
            MultiheadAttention(config.width, config.heads, config.dropout, window=window)
            for _ in range(config.layers)
        ]
        self.blocks = nn.ModuleList(
            DecoderBlock(attention, hidden=config.hidden, dropout=config.dropout)
            for attention in attentions
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.reset_parameters()
        # Positions draw their numbers last, so that two schemes agree in everything else.
        self.position = POSITIONS[config.position].put_into(attentions, config.sizes)

    def reset_parameters(self) -> None:
        """Draw everything but the positions: the blocks by `draw_blocks`, the rest alike.

        Embeddings have variance `1 / width`, as have the rows of absolute positions.
        """
        std = self.config.width**-0.5
        nn.init.normal_(self.embedding.weight, std=std)
        draw_blocks(self.blocks, width=self.config.width, residual=2 * self.config.layers)
        nn.init.normal_(self.head.weight, std=0.5 * std)

    def forward(
        self, tokens: Int64[Tensor, "b i"], cache: Sequence[KeyValueCache] | None = None
    ) -> Float[Tensor, "b i vocabulary"]:
        """Logits of the token after each one.

        Args:
            tokens: numbers in `0..vocabulary - 1`.
            cache: from `new_cache`, holding the tokens before these, to which these are added.

        Raises:
            ShapeError: if `tokens` is not `(b, i)`.
            ValueError: if `cache` has another number of layers.
        """
        check_shape("DecoderLM", "tokens", tokens, "b i", {})
        if cache is not None and len(cache) != len(self.blocks):
            raise ValueError(
                f"DecoderLM: cache must have {len(self.blocks)} layers, got {len(cache)}"
            )
        x = self.embedding(tokens)
        if self.position is not None:
            x = self._with_positions(x, cache)
        x = self.dropout(x)
        with rollback_on_error(*cache or ()):
            for n, block in enumerate(self.blocks):
                x = block(x, None if cache is None else cache[n])
        return self.head(self.norm(x))

    def _with_positions(self, x: Tensor, cache: Sequence[KeyValueCache] | None) -> Tensor:
        """The embeddings with what is added at the input."""
        assert self.position is not None
        if cache is not None:
            return self.position(x, start=cache[0].length)
        if not (self.training and self.config.random_start):
            return self.position(x)
        starts = _random_starts(len(x), x.shape[1], rows=self.config.max_length)
        placed = [
            self.position(one, start=start)
            for one, start in zip(x.split(1), starts.tolist(), strict=True)
        ]
        return torch.cat(placed) if placed else x

    def new_cache(self) -> list[KeyValueCache]:
        """An empty cache for each layer.

        >>> len(DecoderLM(DecoderConfig(vocabulary=7, width=8, layers=3, heads=2)).new_cache())
        3
        """
        return [KeyValueCache() for _ in self.blocks]


def _random_starts(count: int, length: int, *, rows: int) -> Int64[Tensor, "count"]:
    """Where sequences begin so that no row of a table is trained much less often than others.

    In a table of several sequences' rows the first and the last are met as often as those in the
    middle, those near them up to twice as often. A sequence may hang over either end of the table
    by all tokens but one, and is then moved to that end: otherwise the first and the last rows,
    which few starts reach, would hardly be trained, and sequences are measured from the first.
    """
    starts = torch.randint(min(0, 1 - length), rows, (count,))
    return starts.clamp(0, max(0, rows - length))
