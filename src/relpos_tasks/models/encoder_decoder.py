"""An encoder-decoder whose position scheme is one word of its configuration.

A pre-norm transformer (Vaswani et al. 2017 with the norms of Radford et al. 2019) with GELU. The
scheme acts in the self-attentions of both sides, or at both inputs; across there is none, as in
Shaw et al. 2018, section 3.1. It is the only thing that changes between two models: with the same
seed, every other parameter starts with the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import linear

from relpos.checks import check_shape
from relpos.errors import ShapeError
from relpos.layers import DecoderBlock, EncoderBlock, KeyValueCache, MultiheadAttention
from relpos.layers.cache import rollback_on_error

from .configured import ConfiguredModel
from .positions import POSITIONS
from .transformer import TransformerConfig, draw_blocks

__all__ = ["DecodingCache", "EncoderDecoder", "EncoderDecoderConfig"]


@dataclass(frozen=True)
class EncoderDecoderConfig(TransformerConfig):
    """Everything that decides an `EncoderDecoder`'s shape.

    Args:
        source_vocabulary: number of tokens of the source.
        target_vocabulary: number of tokens of the target.
        tied: whether source, target and output share one matrix, as in Vaswani et al. 2017,
            section 3.4; both vocabularies are then the same.
        width: of the residual streams.
        layers: number of blocks of the encoder, and of the decoder.
        heads: attention heads of a block; they divide the width.
        hidden: width of a block's MLP; None means `4 * width`.
        dropout: probability in `0 <= dropout < 1`, of embeddings, weights and residual branches.
        position: a name in `POSITIONS` that is not for causal models alone: `"shaw"`, `"huang"`
            and others in every self-attention, `"absolute"` or `"sinusoidal"` at both inputs, or
            `"none"`.
        max_length: rows of the Huang and absolute tables, in tokens; longer inputs clamp.
        max_distance: the farthest offset with a row of its own, in tokens (k of Shaw et al. 2018);
            0: all offsets share one row, so that nothing is relative; None means 64 for `"shaw"`,
            and every offset of `max_length` for other tables.
        relative_keys: whether `"shaw"` has keys.
        relative_values: whether `"shaw"` has values; without either there are no positions at all.
        shared_heads: whether the heads of a block share one table of relative positions.

    Raises:
        ValueError: if a value is out of range or `position` is unknown.

    >>> EncoderDecoderConfig(100, 100, width=64).head_dim
    16
    >>> EncoderDecoderConfig.from_dict(EncoderDecoderConfig(5, 5).to_dict()).position
    'shaw'
    """

    source_vocabulary: int
    target_vocabulary: int
    tied: bool = True
    width: int = 128
    layers: int = 3
    heads: int = 4
    hidden: int | None = None
    dropout: float = 0.1
    position: str = "shaw"
    max_length: int = 512
    max_distance: int | None = None
    relative_keys: bool = True
    relative_values: bool = True
    shared_heads: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_position([name for name in POSITIONS if not POSITIONS[name].causal_only])
        if self.tied and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                "EncoderDecoderConfig: tied must be False where the vocabularies differ, got True "
                f"with {self.source_vocabulary} and {self.target_vocabulary} tokens"
            )


class DecodingCache:
    """The keys and values of a decoder's layers: of the target so far, and of the memory.

    Args:
        layers: number of decoder blocks.
    """

    def __init__(self, layers: int) -> None:
        self.target = [KeyValueCache() for _ in range(layers)]
        self.memory = [KeyValueCache() for _ in range(layers)]

    @property
    def length(self) -> int:
        """Number of target tokens so far: the position of the next one."""
        return self.target[0].length

    def reorder(self, index: Int64[Tensor, "b_new"], *, memory: bool = True) -> None:
        """Keep the batch entries `index`, in that order, as a beam search asks for.

        Args:
            index: numbers of batch entries; one may come several times.
            memory: False spares copying the memory, where each entry keeps the source it has.

        Raises:
            ShapeError: if `index` is no line of integers.
            TypeError: if it is no tensor.
        """
        for cache in (*self.target, *(self.memory if memory else ())):
            cache.reorder(index)


class EncoderDecoder(ConfiguredModel):
    """Logits of the next target token, from the source and the target up to each position.

    Embeddings are multiplied by the root of the width (Vaswani et al. 2017, section 3.4).

    Args:
        config: the model's shape.

    >>> import torch
    >>> model = EncoderDecoder(EncoderDecoderConfig(7, 7, width=8, layers=1, heads=2))
    >>> source, target = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)
    >>> model(source, target).shape
    torch.Size([2, 3, 7])
    """

    config_class: ClassVar = EncoderDecoderConfig
    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config)
        width, vocabulary = config.width, config.target_vocabulary
        # A tied matrix has one name, the source's.
        self.source_embedding = nn.Embedding(config.source_vocabulary, width)
        self.target_embedding = None if config.tied else nn.Embedding(vocabulary, width)
        self.head = None if config.tied else nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        reading, writing, crossing = (
            [MultiheadAttention(width, config.heads, config.dropout) for _ in range(config.layers)]
            for _ in range(3)
        )
        self.encoder = nn.ModuleList(
            EncoderBlock(attention, hidden=config.hidden, dropout=config.dropout)
            for attention in reading
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(
            DecoderBlock(attention, cross=cross, hidden=config.hidden, dropout=config.dropout)
            for attention, cross in zip(writing, crossing, strict=True)
        )
        self.decoder_norm = nn.LayerNorm(width)
        self.reset_parameters()
        # Positions draw their numbers last, so that two schemes agree in everything else.
        scheme, sizes = POSITIONS[config.position], config.sizes
        self.source_position = scheme.put_into(reading, replace(sizes, causal=False))
        self.target_position = scheme.put_into(writing, sizes)

    def reset_parameters(self) -> None:
        """Draw everything but the positions: the blocks by `draw_blocks`, the rest alike.

        Embeddings have variance `1 / width`, and 1 once they are multiplied by its root. A tied
        matrix would begin by predicting the token that was just read, whose vector is still the
        largest part of the stream; the last norm begins at 1/2, so that this is a small preference
        and logits have variance 1/4, as those of a matrix of their own.
        """
        width, layers = self.config.width, self.config.layers
        nn.init.constant_(self.decoder_norm.weight, 0.5 if self.config.tied else 1.0)
        nn.init.normal_(self.source_embedding.weight, std=width**-0.5)
        if self.target_embedding is not None and self.head is not None:
            nn.init.normal_(self.target_embedding.weight, std=width**-0.5)
            nn.init.normal_(self.head.weight, std=0.5 * width**-0.5)
        draw_blocks(self.encoder, width=width, residual=2 * layers)
        draw_blocks(self.decoder, width=width, residual=3 * layers)

    def forward(
        self,
        source: Int64[Tensor, "b j"],
        target: Int64[Tensor, "b i"],
        source_padding: Bool[Tensor, "b j"] | None = None,
    ) -> Float[Tensor, "b i vocabulary"]:
        """Logits of the token after each one of the target.

        Args:
            source: tokens in `0..source_vocabulary - 1`.
            target: tokens in `0..target_vocabulary - 1`, the first one beginning the target.
            source_padding: True at the tokens behind the end of a source, which reach no other
                (the convention of `nn.MultiheadAttention`); None means none. What stands behind
                the end of a target needs no mask: no token before it sees it.

        Raises:
            ShapeError: if a tensor does not fit the others.
        """
        return self.decode(target, self.encode(source, source_padding), source_padding)

    def encode(
        self, source: Int64[Tensor, "b j"], source_padding: Bool[Tensor, "b j"] | None = None
    ) -> Float[Tensor, "b j e"]:
        """The memory, which the decoder reads: one vector for each token of the source.

        Args:
            source: as in `forward`.
            source_padding: as in `forward`.

        Raises:
            ShapeError: if a tensor is not `(b, j)`.
        """
        check_shape("EncoderDecoder", "source", source, "b j", {})
        _check_padding(source_padding, *source.shape)
        x = self._embed(source, self.source_embedding, self.source_position, start=0)
        for block in self.encoder:
            x = block(x, source_padding)
        return self.encoder_norm(x)

    def decode(
        self,
        target: Int64[Tensor, "b i"],
        memory: Float[Tensor, "b j e"] | None = None,
        source_padding: Bool[Tensor, "b j"] | None = None,
        *,
        cache: DecodingCache | None = None,
    ) -> Float[Tensor, "b i vocabulary"]:
        """Logits of the token after each one of the target.

        Args:
            target: as in `forward`, without the tokens that `cache` holds.
            memory: from `encode`; None where `cache` holds it already.
            source_padding: as in `forward`, at every call.
            cache: from `new_cache`, holding the target before these tokens, to which these are
                added; if empty it takes the memory's keys and values too. No gradient passes it.

        Raises:
            ShapeError: if a tensor does not fit the others, or what the cache holds.
            ValueError: if `cache` has another number of layers, or there is no memory. A refused
                call leaves the cache as it was.
        """
        check_shape("EncoderDecoder", "target", target, "b i", {})
        if cache is not None and len(cache.target) != len(self.decoder):
            raise ValueError(
                f"EncoderDecoder: cache must have {len(self.decoder)} layers, "
                f"got {len(cache.target)}"
            )
        held = 0 if cache is None else cache.memory[0].length
        if memory is None and not held:
            raise ValueError("EncoderDecoder: memory must be given until a cache holds it")
        length = held if memory is None else memory.shape[1]
        _check_padding(source_padding, target.shape[0], length)
        embedding = self.target_embedding or self.source_embedding
        start = 0 if cache is None else cache.length
        x = self._embed(target, embedding, self.target_position, start=start)
        caches = () if cache is None else (*cache.target, *cache.memory)
        with rollback_on_error(*caches):
            for n, block in enumerate(self.decoder):
                x = block(
                    x,
                    None if cache is None else cache.target[n],
                    memory=memory,
                    memory_key_padding_mask=source_padding,
                    memory_cache=None if cache is None else cache.memory[n],
                )
        return linear(self.decoder_norm(x), (self.head or embedding).weight)

    def new_cache(self) -> DecodingCache:
        """An empty cache, to `decode` step by step.

        >>> model = EncoderDecoder(EncoderDecoderConfig(7, 7, width=8, layers=3, heads=2))
        >>> model.new_cache().length
        0
        """
        return DecodingCache(len(self.decoder))

    def _embed(
        self, tokens: Tensor, embedding: nn.Embedding, position: nn.Module | None, *, start: int
    ) -> Tensor:
        x = embedding(tokens)
        if position is not None:
            # Positions have the size of embeddings before they are multiplied.
            x = position(x, start=start)
        return self.dropout(x * self.config.width**0.5)


def _check_padding(padding: Tensor | None, batch: int, length: int) -> None:
    if padding is None:
        return
    check_shape("EncoderDecoder", "source_padding", padding, "b j", {"b": batch, "j": length})
    if padding.dtype != torch.bool:
        raise ShapeError(f"EncoderDecoder: source_padding must be boolean, got {padding.dtype}")
