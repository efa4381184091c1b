"""Transformer blocks, composed from attention layers that are given to them.

    x = x + A(norm(x));  x = x + C(norm(x), memory);  x = x + MLP(norm(x))

- Source: Vaswani et al. 2017, section 3.1, with the norm before each part instead of after it
  (pre-norm, Radford et al. 2019, section 2.3), and GELU. The encoder's block sees both directions;
  the decoder's is causal, and has the middle part if it is given a cross-attention C.
- Across, the queries and the memory both count from 0. Without a position in C, as in the paper
  and in T5, nothing is relative there; with one, the offset is the memory's position minus
  the query's own.
- Positions count along the row, padding on the left and other documents included: see
  `MultiheadAttention` on schemes whose term depends on the position itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jaxtyping import Float, Integer
from torch import Tensor, nn

from ..checks import (
    check_count,
    check_floating,
    check_integers,
    check_probability,
    check_shape,
    check_tensor,
)
from ..jagged import is_jagged
from ..ops.locality import AnyKeyRanges
from .cache import KeyValueCache, check_cache, rollback_on_error
from .multihead import MultiheadAttention
from .nested import decoder_of_nested, encoder_of_nested

__all__ = ["DecoderBlock", "EncoderBlock"]


def _check_attention(name: str, argument: str, attention: MultiheadAttention) -> None:
    if not isinstance(attention, MultiheadAttention):
        raise TypeError(
            f"{name}: {argument} must be a relpos.layers.MultiheadAttention, "
            f"got {type(attention).__name__}"
        )
    if not attention.batch_first:
        raise ValueError(
            f"{name}: {argument} must have batch_first=True, since a block's input is (b, i, e), "
            "got False"
        )


def _norm(attention: MultiheadAttention) -> nn.LayerNorm:
    like = attention.out_proj.weight
    return nn.LayerNorm(attention.embed_dim, device=like.device, dtype=like.dtype)


def _mlp(name: str, attention: MultiheadAttention, hidden: int | None) -> nn.Sequential:
    width, like = attention.embed_dim, attention.out_proj.weight
    hidden = 4 * width if hidden is None else check_count(name, "hidden", hidden)
    return nn.Sequential(
        nn.Linear(width, hidden, device=like.device, dtype=like.dtype),
        nn.GELU(),
        nn.Linear(hidden, width, device=like.device, dtype=like.dtype),
    )


def _check_cross(cross: MultiheadAttention, width: int) -> None:
    _check_attention("DecoderBlock", "cross", cross)
    if cross.embed_dim != width:
        raise ValueError(f"DecoderBlock: cross must have embed_dim={width}, got {cross.embed_dim}")
    if cross.kdim != cross.vdim:
        raise ValueError(
            "DecoderBlock: cross must have kdim equal to vdim, as both read the memory, "
            f"got {cross.kdim} and {cross.vdim}"
        )


class EncoderBlock(nn.Module):
    """`x + A(norm(x))`, then `x + MLP(norm(x))`, each token seeing all others.

    Args:
        attention: self-attention over the width of the block, whose dtype and device the
            norms and the MLP have too.
        hidden: width of the MLP; None means four times that of the block.
        dropout: probability that an entry of what is added to `x` is dropped in training.

    Raises:
        ValueError: if `attention` is not `batch_first`, `hidden` is below 1, or `dropout` is
            not in `0 <= dropout < 1`.
        TypeError: if an attention is of another class.

    >>> import torch
    >>> block = EncoderBlock(MultiheadAttention(8, 2))
    >>> block(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(
        self, attention: MultiheadAttention, *, hidden: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        _check_attention("EncoderBlock", "attention", attention)
        # Asked of the block: what wraps its attention, as PEFT does, may not have it.
        self.embed_dim = attention.embed_dim
        self.attention_norm = _norm(attention)
        self.attention = attention
        self.mlp_norm = _norm(attention)
        self.mlp = _mlp("EncoderBlock", attention, hidden)
        self.dropout = nn.Dropout(check_probability("EncoderBlock", "dropout", dropout))

    def forward(
        self,
        x: Float[Tensor, "b i e"],
        key_padding_mask: Tensor | None = None,
        *,
        documents: Integer[Tensor, "#b i"] | None = None,
        key_ranges: Integer[Tensor, "#b i 2"]
        | Sequence[Integer[Tensor, "#b _ 2"] | None]
        | None = None,
    ) -> Float[Tensor, "b i e"]:
        """The next residual stream.

        Args:
            x: residual stream; nested (`torch.jagged`), too.
            key_padding_mask: `(b, i)`; boolean, True is *dropped* as in `nn.MultiheadAttention`,
                or a number added to the scores. What stands at a dropped position, which must be
                finite, reaches no other.
            documents: the document of each position of a packed row, as in `relpos.attention`.
            key_ranges: the keys `lo..hi-1` that each query sees, as in `relpos.attention`; with
                `relpos.prefix_ranges` the block is one of a prefix language model.

        Raises:
            ShapeError: if a tensor or mask does not fit the others.
            ValueError: if the position needs another scale, or `key_ranges` has not one entry for
                each axis.
        """
        if is_jagged(x):
            others = {
                "key_padding_mask": key_padding_mask, "documents": documents,
                "key_ranges": key_ranges,
            }  # fmt: skip
            return encoder_of_nested(partial(EncoderBlock.forward, self), self.attention, x, others)
        check_floating("EncoderBlock", "x", x, "b i e", {"e": self.embed_dim})
        y = self.attention_norm(x)
        y, _ = self.attention(
            y, y, y, key_padding_mask, need_weights=False, documents=documents,
            key_ranges=key_ranges,
        )  # fmt: skip
        x = x + self.dropout(y)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class DecoderBlock(nn.Module):
    """`x + A(norm(x))`, causal; with `cross`, `x + C(norm(x), memory)`; then `x + MLP(norm(x))`.

    Args:
        attention: self-attention over the width of the block, whose dtype and device the
            norms and the MLP have too.
        cross: attention of the same width to an encoder's output, whose width is its `kdim` and
            `vdim`; None means none.
        hidden: width of the MLP; None means four times that of the block.
        dropout: probability that an entry of what is added to `x` is dropped in training.

    Raises:
        ValueError: if an attention is not `batch_first`, `cross` has another width, its keys and
            values are not equally wide, `hidden` is below 1, or `dropout` is
            not in `0 <= dropout < 1`.
        TypeError: if an attention is of another class.

    >>> block = DecoderBlock(MultiheadAttention(8, 2), cross=MultiheadAttention(8, 2))
    """

    def __init__(
        self,
        attention: MultiheadAttention,
        *,
        cross: MultiheadAttention | None = None,
        hidden: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_attention("DecoderBlock", "attention", attention)
        if cross is not None:
            _check_cross(cross, attention.embed_dim)
        self.embed_dim = attention.embed_dim
        self.memory_dim = None if cross is None else cross.kdim
        self.attention_norm = _norm(attention)
        self.attention = attention
        self.cross_norm = None if cross is None else _norm(attention)
        self.cross = cross
        self.mlp_norm = _norm(attention)
        self.mlp = _mlp("DecoderBlock", attention, hidden)
        self.dropout = nn.Dropout(check_probability("DecoderBlock", "dropout", dropout))

    def forward(
        self,
        x: Float[Tensor, "b i e"],
        cache: KeyValueCache | None = None,
        *,
        memory: Float[Tensor, "b m kdim"] | None = None,
        memory_key_padding_mask: Tensor | None = None,
        memory_cache: KeyValueCache | None = None,
        documents: Integer[Tensor, "#b j"] | None = None,
        memory_documents: Integer[Tensor, "#b m"] | None = None,
        key_ranges: Integer[Tensor, "#b i 2"]
        | Sequence[Integer[Tensor, "#b _ 2"] | None]
        | None = None,
    ) -> Float[Tensor, "b i e"]:
        """The next residual stream.

        Args:
            x: residual stream; nested (`torch.jagged`), too.
            cache: this layer's tokens before these.
            memory: the encoder's output, for `cross`, nested where `x` is; not needed where
                `memory_cache` holds it.
            memory_key_padding_mask: `(b, m)`, one for each position of the memory; boolean, True is
                *dropped* as in `nn.MultiheadAttention`, or a number added to the scores.
            memory_cache: another cache than `cache`; if empty, it takes the memory's keys and
                values, and otherwise what it holds is read and nothing projected again. No
                gradient reaches the memory through it. `reset` it before another memory.
            documents: the document of each position of a packed row, those in `cache` included,
                as in `relpos.attention`; all of the memory is seen without `memory_documents`.
            memory_documents: `(b or 1, m)`, the document of each position of the memory, where its
                rows are packed too: tokens see what is of their own document. Comes with
                `documents`, and in each step, as `memory_cache` does not hold it. Where `cross` has
                a position or a window, whose offsets go by the places in the rows, these must lie
                alike: it is to be the same tensor as `documents` then.
            key_ranges: the keys `lo..hi-1` of all j, those in `cache` included, that each query
                sees if they are not ahead of it, as in `relpos.attention`.

        Raises:
            ShapeError: if a tensor or mask does not fit the others, or what a cache holds.
            ValueError: if a memory is wanted and not given, or given and not wanted, its documents
                come without those of `x` or without `cross`, or are others beside a `cross` with
                offsets, or both caches are the same. A refused call leaves them as they were.
        """
        if is_jagged(x):
            others = {
                "cache": cache, "memory_key_padding_mask": memory_key_padding_mask,
                "memory_cache": memory_cache, "documents": documents,
                "memory_documents": memory_documents, "key_ranges": key_ranges,
            }  # fmt: skip
            return decoder_of_nested(
                partial(DecoderBlock.forward, self), self.attention, self.cross, x, memory, others
            )
        check_cache("DecoderBlock", "cache", cache)
        check_cache("DecoderBlock", "memory_cache", memory_cache)
        if memory_cache is not None and memory_cache is cache:
            raise ValueError(
                "DecoderBlock: memory_cache must be another cache than cache, got the same"
            )
        check_floating("DecoderBlock", "x", x, "b i e", {"e": self.embed_dim})
        memory = self._memory_to_project(x, memory, memory_key_padding_mask, memory_cache)
        if memory_documents is not None:
            held = 0 if memory_cache is None else memory_cache.length
            self._check_memory_documents(x, documents, memory_documents, memory, held)
        with rollback_on_error(cache, memory_cache):
            x = self._attend(
                x, cache, memory, memory_key_padding_mask, memory_cache, documents=documents,
                memory_documents=memory_documents, key_ranges=key_ranges,
            )  # fmt: skip
            return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def _attend(
        self,
        x: Tensor,
        cache: KeyValueCache | None,
        memory: Tensor | None,
        mask: Tensor | None,
        memory_cache: KeyValueCache | None,
        *,
        documents: Tensor | None,
        memory_documents: Tensor | None,
        key_ranges: AnyKeyRanges,
    ) -> Tensor:
        """`x + A(norm(x))`, and the cross-attention added to that."""
        start = 0 if cache is None else cache.length
        y = self.attention_norm(x)
        y, _ = self.attention(
            y, y, y, need_weights=False, is_causal=True, cache=cache, documents=documents,
            key_ranges=key_ranges,
        )  # fmt: skip
        x = x + self.dropout(y)
        if self.cross is not None and self.cross_norm is not None:
            of_queries = None
            if memory_documents is not None and documents is not None:
                of_queries = documents[:, start:]
            y, _ = self.cross(
                self.cross_norm(x), memory, memory, mask, need_weights=False,
                cache=memory_cache, query_start=start, documents=memory_documents,
                query_documents=of_queries,
            )  # fmt: skip
            x = x + self.dropout(y)
        return x

    def _memory_to_project(
        self,
        x: Tensor,
        memory: Tensor | None,
        mask: Tensor | None,
        memory_cache: KeyValueCache | None,
    ) -> Tensor | None:
        """What of the memory is yet to be projected: all of it, or none; None without `cross`."""
        if self.cross is None or self.memory_dim is None:
            if memory is not None or memory_cache is not None:
                raise ValueError("DecoderBlock: memory must be None without cross, got one")
            return None
        b, kdim = x.shape[0], self.memory_dim
        length = 0 if memory_cache is None else memory_cache.length
        new = x.new_empty(b, 0, kdim) if length else memory
        if new is None:
            raise ValueError("DecoderBlock: memory must be given to a block with cross, got None")
        if memory is not None:
            sizes = {"b": b, "kdim": kdim} | ({"j": length} if length else {})
            check_floating("DecoderBlock", "memory", memory, "b j kdim", sizes)
            length = memory.shape[1]
        if mask is not None:
            sizes = {"b": b, "j": length}
            check_shape("DecoderBlock", "memory_key_padding_mask", mask, "b j", sizes)
        return new

    def _check_memory_documents(
        self,
        x: Tensor,
        documents: Tensor | None,
        memory_documents: Tensor,
        memory: Tensor | None,
        held: int,
    ) -> None:
        if memory is None:
            raise ValueError(
                "DecoderBlock: memory_documents must be None without cross, got a tensor"
            )
        if documents is None:
            raise ValueError(
                "DecoderBlock: memory_documents must come with documents, those of x, got it alone"
            )
        position = getattr(self.cross, "position", None)
        window = getattr(self.cross, "window", None)
        if memory_documents is not documents and (position is not None or window is not None):
            raise ValueError(
                "DecoderBlock: memory_documents must be documents itself, the same tensor, beside "
                "a cross with a position or a window, whose offsets go by the places in the rows, "
                f"got another beside {type(position).__name__} and {window}"
            )
        name = "memory_documents"
        check_tensor("DecoderBlock", name, memory_documents)
        check_integers("DecoderBlock", name, memory_documents)
        sizes = {"b": (1, x.shape[0]), "m": held + memory.shape[1]}
        check_shape("DecoderBlock", name, memory_documents, "b m", sizes)
