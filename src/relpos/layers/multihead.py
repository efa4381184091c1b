"""`torch.nn.MultiheadAttention` with relative positions, grouped keys and a cache.

Same arguments, masks, returns, parameter names and initial numbers; with `position=None` the same
output. It differs where torch's behaviour is a trap or needs the `i x j` matrix:

- `batch_first` defaults to True.
- `is_causal=True` is enough by itself, and means the lower right: the queries are the last `i` of
  the `j` positions. In torch it is a hint about a mask that must be given as well.
- A query whose keys are all masked gives zeros before the output projection; torch gives NaN.
- `need_weights=True`, the default as in torch, returns the weights before dropout and builds them
  as an `i x j` matrix beside the op; pass False for memory in `O(j)`.
- `add_bias_kv` and `add_zero_attn` are refused: the keys that they append have no position.

Positions count along the row, padding and other documents included. Offsets do not notice; a scheme
whose term depends on the position itself (`AbsoluteKeys`, `AbsPosEmb1D`, and those at the input)
does: with `documents` or padding on the left its rows begin at the row's start, not at the
sequence's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Integer
from torch import Tensor, nn

from ..checks import (
    check_dtype,
    check_flags,
    check_probability,
    check_scale,
    check_softcap,
    check_tensor,
)
from ..errors import ShapeError
from ..jagged import is_jagged
from ..ops import attention, attention_weights
from ..ops.locality import AnyKeyRanges, AnyWindow, Window, is_of_axes
from ..positions.handover import apply_position, check_position, resolve_scale
from ..terms import GridTerms, Terms
from .cache import KeyValueCache, check_cache, rollback_on_error
from .elsewhere import AttendElsewhere, check_elsewhere
from .masks import from_key, merge_masks
from .nested import attention_of_nested, attention_of_strided
from .projections import InputProjections
from .windows import check_window

__all__ = ["AttendElsewhere", "MultiheadAttention"]


class MultiheadAttention(InputProjections):
    """`concat_h(attention(q W_q, k W_k, v W_v)) W_o`, with `position` acting on each head.

    Args:
        embed_dim: width e of the queries and of the output.
        num_heads: query heads h.
        dropout: probability that a weight is dropped in training.
        bias: whether the projections have biases.
        add_bias_kv: must be False.
        add_zero_attn: must be False.
        kdim: width of the keys; None means e.
        vdim: width of the values; None means e.
        batch_first: whether tensors are `(b, i, e)` instead of `(i, b, e)`.
        device: of the parameters.
        dtype: of the parameters.
        position: a scheme called as `q, k, terms = position(q, k)`, or with the query's input
            `(b, i, e)` as third argument if it has `reads_input = True`, and with `query_start=`
            if it has `reads_query_start = True`; None: no positions.
        num_kv_heads: key and value heads g, which the query heads share; None means h.
        head_dim: width d of one head; None means `e / h`, as in torch.
        scale: of the scores; None means the one that the position needs, or else `1 / sqrt(d)`.
        window: `(left, right)`: only keys at the offsets `-left..right` take part, in tokens, None
            for no limit on a side; `(511, 0)` is a causal window of 512 tokens. A cache then drops
            what no later query can see, if the position allows it (`shift_invariant`). With a
            `position` that has tables for the axes of a grid (`Grid`, `WindowBias`,
            `ContinuousBias`), one such pair (or None) for each axis.
        softcap: c of `c tanh(s / c)`, applied to the scores before the masks; None: none.

    Raises:
        TypeError: if `position` cannot be called so.
        ValueError: if the heads do not divide the width, the position needs another scale, or an
            argument is refused.

    >>> from relpos.positions import Shaw
    >>> layer = MultiheadAttention(64, 4, position=Shaw(16, max_distance=8))
    >>> x = torch.zeros(2, 5, 64)
    >>> out, weights = layer(x, x, x)
    >>> tuple(out.shape), tuple(weights.shape)
    ((2, 5, 64), (2, 5, 5))
    """

    # What torch's layer has, for code that asks.
    bias_k: None = None
    bias_v: None = None
    add_zero_attn: bool = False
    # Where the heads attend over several devices, what does it in place of the layer
    # (`relpos.distributed.ContextParallel`).
    attend_elsewhere: AttendElsewhere[MultiheadAttention] | None = None

    # torch's arguments, in torch's order.
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        position: nn.Module | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        window: AnyWindow = None,
        softcap: float | None = None,
    ) -> None:
        for name, refused in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if refused:
                raise ValueError(
                    f"MultiheadAttention: {name} must be False, since an appended key has no "
                    "position, got True"
                )
        check_dtype("MultiheadAttention", dtype)
        check_flags("MultiheadAttention", bias=bias, batch_first=batch_first)
        super().__init__(
            embed_dim, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, kdim=kdim,
            vdim=vdim, bias=bias, device=device, dtype=dtype,
        )  # fmt: skip
        check_probability("MultiheadAttention", "dropout", dropout)
        self.dropout, self.batch_first = dropout, batch_first
        self.scale = check_scale("MultiheadAttention", scale, positive=False)
        if position is not None:
            check_position("MultiheadAttention", "position", position)
        resolve_scale("MultiheadAttention", position, self.scale, width=self.head_dim)
        self.window = check_window("MultiheadAttention", window)
        self.softcap = check_softcap("MultiheadAttention", softcap)

        heads = self.num_heads * self.head_dim
        self.out_proj = nn.Linear(heads, self.embed_dim, bias=bias, device=device, dtype=dtype)
        self.position = position
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform input projections and zero biases, in torch's order and numbers."""
        for name, parameter in self.named_parameters(recurse=False):
            if name != "in_proj_bias":
                nn.init.xavier_uniform_(parameter)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        # Strided nested tensors have no shape.
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: KeyValueCache | None = None,
        query_start: int | None = None,
        documents: Integer[Tensor, "..."] | None = None,
        query_documents: Integer[Tensor, "..."] | None = None,
        key_ranges: Integer[Tensor, "..."] | Sequence[Integer[Tensor, "..."] | None] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Output like `query`, and the weights or None.

        Args:
            query: `(b, i, e)`, `(i, b, e)` without `batch_first`, or one sequence `(i, e)`; or
                nested (`torch.jagged`) with sequences of their own lengths, as key and value are
                then: `need_weights` must be False, and of the others `is_causal` alone is taken.
                Of strided nested tensors, as torch's encoders make them, keys and values must be
                as long as queries.
            key: likewise with j tokens of width kdim.
            value: likewise with j tokens of width vdim.
            key_padding_mask: `(b, j)` or `(j,)`; boolean, True is *dropped* (the opposite of
                `relpos.attention`), or a number added to the scores.
            need_weights: whether to return the weights, which builds an `i x j` matrix.
            attn_mask: `(i, j)` or `(b * h, i, j)`; likewise.
            average_attn_weights: whether the weights are averaged over the heads.
            is_causal: whether keys ahead of the query are left out; no mask is needed for it.
            cache: holds the tokens before these; the new ones are appended, j counts both, and
                no gradient reaches the keys and values. It does not make attention causal: without
                `is_causal=True` tokens of one chunk see those after them. Masks, documents
                and ranges number all j, those that a window has dropped included.
            query_start: position of the first query, in tokens; None: the queries are the last i
                of the j positions. Across, where both sides count from 0, it is the number of
                tokens before these queries. A cache then drops nothing.
            documents: `(b or 1, j)`, or `(j,)` for one sequence: the document of each position
                of a packed row, as in `relpos.attention`; tokens see only their own.
            query_documents: `(b or 1, i)`, or `(i,)` for one sequence: those of the queries where
                they are none of the j positions, as across from one packed row to another, whose
                `documents` go with them. A position, a window and `is_causal` go by the places in
                these rows: a document's own offsets they are where it begins at the same place in
                both.
            key_ranges: `(b or 1, i, 2)`, or `(i, 2)` for one sequence: the keys `lo..hi-1` of the
                j that each query sees, as in `relpos.attention`; with a position for a grid also a
                list of such for its axes. For a cache to drop keys the layer needs a window, too.

        Returns:
            The output; the weights before dropout, `(b, i, j)` or `(b, h, i, j)`, from a cache
            those of the keys from `cache.start` on.

        Raises:
            ShapeError: if a tensor or mask does not fit the others, or what the cache holds. A
                refused call leaves the cache as it was, whatever the error.
            ValueError: if the position needs another scale, or another layer's window dropped
                tokens from the cache that this one sees.
        """
        if isinstance(query, Tensor) and query.is_nested:
            others = {
                "key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "cache": cache,
                "query_start": query_start, "documents": documents,
                "query_documents": query_documents, "key_ranges": key_ranges,
            }  # fmt: skip
            forward = partial(MultiheadAttention.forward, self)
            if is_jagged(query):
                output = attention_of_nested(
                    forward, self, query, key, value, need_weights=need_weights,
                    is_causal=is_causal, others=others,
                )  # fmt: skip
                return output, None
            return attention_of_strided(
                forward, self, query, key, value, need_weights=need_weights,
                average_attn_weights=average_attn_weights, is_causal=is_causal, others=others,
            )  # fmt: skip
        self_attention = query is key and key is value
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_tensor("MultiheadAttention", name, x)
        single = query.ndim == 2
        if single:
            _check_single(key, value)
            query, key, value = query[None], key[None], value[None]
            if key_padding_mask is not None:
                check_tensor("MultiheadAttention", "key_padding_mask", key_padding_mask)
                key_padding_mask = key_padding_mask[None]
            documents = _with_batch("documents", documents, axes=1)
            query_documents = _with_batch("query_documents", query_documents, axes=1)
            if isinstance(key_ranges, Sequence):
                key_ranges = [
                    _with_batch(f"key_ranges[{axis}]", ranges, axes=2)
                    for axis, ranges in enumerate(key_ranges)
                ]
            else:
                key_ranges = _with_batch("key_ranges", key_ranges, axes=2)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        self._check_inputs(query, key, value)
        check_cache("MultiheadAttention", "cache", cache)

        q, k, v = self._project(query, key, value, self_attention=self_attention)
        if self.attend_elsewhere is not None:
            check_elsewhere(need_weights=need_weights, cache=cache)
            heads = self.attend_elsewhere(
                self, q, k, v, query, self_attention=self_attention, causal=is_causal,
                key_padding_mask=key_padding_mask, attn_mask=attn_mask, query_start=query_start,
                documents=documents, query_documents=query_documents, key_ranges=key_ranges,
            )  # fmt: skip
            return self._output(heads, single=single), None
        j = k.shape[2] + (0 if cache is None else cache.length)
        mask = merge_masks(
            key_padding_mask, attn_mask, sizes=(q.shape[0], self.num_heads, q.shape[2], j)
        )
        with rollback_on_error(cache):
            if cache is not None:
                cache.claim(self)
                stays = query_start is not None or not self._shifts  # may go back, as over a memory
                start = (
                    0 if stays else cache.first_seen(q.shape[2], k.shape[2], self._window_of_row)
                )
                k, v = cache.append(k, v, start=start)
                if start:
                    sizes = (q.shape[0], q.shape[2], j)
                    mask, documents, key_ranges = from_key(
                        start, mask, documents, key_ranges, sizes=sizes
                    )
            heads, weights = self._attend(
                q, k, v, query, need_weights=need_weights, causal=is_causal, mask=mask,
                query_start=query_start, documents=documents, query_documents=query_documents,
                key_ranges=key_ranges,
            )  # fmt: skip
            output = self._output(heads, single=single)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return output, weights[0] if single and weights is not None else weights

    def _output(self, heads: Tensor, *, single: bool) -> Tensor:
        """The heads `(b, h, i, d)` through the last projection, in the layout of the query."""
        output = self.out_proj(heads.transpose(1, 2).flatten(2))
        if single:
            return output[0]
        return output if self.batch_first else output.transpose(0, 1)

    @property
    def position_of_heads(self) -> Callable[..., Any] | None:
        """What is called as the position: where heads are cut, that of this device's heads."""
        return self.position

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms, **options: Any
    ) -> Tensor:
        return attention(q, k, v, terms, **options)

    @property
    def _qkv_same_embed_dim(self) -> bool:
        # `nn.TransformerEncoderLayer` reads this of its `self_attn`. Where it is True, the layer's
        # fused inference takes the weights and never calls `forward`: no position would act.
        return False

    def extra_repr(self) -> str:
        """Width, heads, and non-default arguments."""
        kv_heads = "" if self.num_kv_heads == self.num_heads else f", kv_heads={self.num_kv_heads}"
        differs = self.num_heads * self.head_dim != self.embed_dim
        width = f", head_dim={self.head_dim}" if differs else ""
        scale = "" if self.scale is None else f", scale={self.scale:g}"
        window = "" if self.window is None else f", window={self.window}"
        softcap = "" if self.softcap is None else f", softcap={self.softcap:g}"
        sizes = f"embed_dim={self.embed_dim}, heads={self.num_heads}{kv_heads}{width}"
        return sizes + scale + window + softcap

    @property
    def _window_of_row(self) -> Window | None:
        """By which a cache may drop tokens: none where there is one for each axis of a grid."""
        if self.window is None or is_of_axes(self.window):
            return None
        return cast(Window, self.window)

    @property
    def _shifts(self) -> bool:
        """Whether terms stay the same where keys are dropped in front."""
        return self.position is None or getattr(self.position, "shift_invariant", False)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: Tensor,
        *,
        need_weights: bool,
        causal: bool,
        mask: Tensor | None,
        query_start: int | None,
        documents: Tensor | None,
        query_documents: Tensor | None,
        key_ranges: AnyKeyRanges,
    ) -> tuple[Tensor, Tensor | None]:
        """The heads `(b, h, i, d)` and, if wanted, their weights `(b, h, i, j)`."""
        # Resolved here too, since the position may have been given later.
        scale = resolve_scale("MultiheadAttention", self.position, self.scale, width=self.head_dim)
        q, k, terms = apply_position(self.position_of_heads, q, k, x, query_start=query_start)
        if isinstance(terms, Terms) and is_of_axes(self.window):
            raise ValueError(
                "MultiheadAttention: window must be one (left, right) with a position that has no "
                f"tables for the axes of a grid, got {self.window} and "
                f"{type(self.position).__name__}"
            )
        heads = self._attention(
            q, k, v, terms, causal=causal, mask=mask, scale=scale,
            dropout=self.dropout if self.training else 0.0, query_start=query_start,
            documents=documents, query_documents=query_documents, window=self.window,
            key_ranges=key_ranges, softcap=self.softcap,
        )  # fmt: skip
        if not need_weights:
            return heads, None
        weights = attention_weights(
            q, k, terms, causal=causal, mask=mask, scale=scale, query_start=query_start,
            documents=documents, query_documents=query_documents, window=self.window,
            key_ranges=key_ranges, softcap=self.softcap,
        )  # fmt: skip
        return heads, weights


def _check_single(key: Tensor, value: Tensor) -> None:
    """Raise unless they have no axis of sequences, beside a query that has none."""
    if key.ndim != 2 or value.ndim != 2:
        raise ShapeError(
            "MultiheadAttention: key and value must have 2 axes, as query has, got "
            f"{key.ndim} and {value.ndim}"
        )


def _with_batch(argument: str, x: Tensor | None, *, axes: int) -> Tensor | None:
    """What is given for one sequence, with so many axes, as that of a batch of one."""
    if x is None:
        return None
    check_tensor("MultiheadAttention", argument, x)
    return x[None] if x.ndim == axes else x
