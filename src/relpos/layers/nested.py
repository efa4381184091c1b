"""Layers called with nested tensors: jagged ones as rows whose sequences are documents.

Those of the older, strided kind, which torch's encoders make of padded sequences in inference, are
padded again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..checks import one_line
from ..errors import ShapeError
from ..jagged import (
    check_alike,
    check_jagged,
    check_only_jagged,
    documents_of,
    have_same_offsets,
    is_jagged,
    jagged_like,
    row_of,
)

__all__ = [
    "attention_of_nested", "attention_of_strided", "decoder_of_nested", "encoder_of_nested",
    "padded", "unpadded_like",
]  # fmt: skip

_Forward = Callable[..., Any]


@runtime_checkable
class _Attention(Protocol):
    """What is asked of a `MultiheadAttention`."""

    batch_first: bool

    @property
    def position(self) -> object | None: ...

    @property
    def window(self) -> object | None: ...

    @property
    def attend_elsewhere(self) -> object | None: ...


def attention_of_nested(
    forward: _Forward,
    layer: _Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    need_weights: bool,
    is_causal: bool,
    others: Mapping[str, Any],
) -> Tensor:
    """What a layer gives for them, `(b, i, e)`, nested like `query`.

    Args:
        forward: of the layer, called with rows.
        layer: whose it is.
        query: `(b, i, e)`, jagged along i.
        key: `(b, j, kdim)`, jagged along j.
        value: `(b, j, vdim)`, likewise.
        need_weights: as the layer was given it.
        is_causal: likewise.
        others: by name, what must not be given.

    Raises:
        ShapeError: if a tensor is not jagged like this.
        ValueError: if something is asked for or given that nested tensors do not have, or the
            position is not that of each sequence by itself.
    """
    name = "MultiheadAttention"
    for argument, x, axes in (
        ("query", query, "b i e"), ("key", key, "b j kdim"), ("value", value, "b j vdim")
    ):  # fmt: skip
        check_jagged(name, argument, x, axes, axes.split()[1])
    check_only_jagged(name, others)
    for argument, found, wanted in (
        ("need_weights", need_weights, False), ("batch_first", layer.batch_first, True)
    ):  # fmt: skip
        if found != wanted:
            raise ValueError(
                f"{name}: {argument} must be {wanted} with nested tensors, got {found}"
            )
    check_alike(name, "value", value, "key", key, axis=1)
    check_alike(name, "query", query, "key", key)
    _check_position(name, layer)
    of_queries = None
    if not have_same_offsets(query, key, axis=1):
        of_queries = documents_of(query, axis=1)
        _check_order_is_free(name, layer, is_causal=is_causal)
    rows = {id(x): row_of(x, axis=1) for x in (query, key, value)}
    output, _ = forward(
        *(rows[id(x)] for x in (query, key, value)), need_weights=False, is_causal=is_causal,
        documents=documents_of(key, axis=1), query_documents=of_queries,
    )  # fmt: skip
    return jagged_like(output, query, axis=1)


def attention_of_strided(
    forward: _Forward,
    layer: _Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    need_weights: bool,
    average_attn_weights: bool,
    is_causal: bool,
    others: Mapping[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """What a layer gives for self-attention over strided nested tensors, and padded weights.

    Args:
        forward: of the layer, called with padded sequences.
        layer: whose it is.
        query: sequences `(i, e)`.
        key: sequences `(i, kdim)` as long.
        value: likewise.
        need_weights: as the layer was given it.
        average_attn_weights: likewise.
        is_causal: likewise.
        others: by name, what must not be given.

    Raises:
        ShapeError: if keys are no nested tensor, or of other lengths.
        ValueError: if something is given that nested tensors do not have.
    """
    name = "MultiheadAttention"
    for argument, x in (("key", key), ("value", value)):
        if not isinstance(x, Tensor) or not x.is_nested or is_jagged(x):
            raise ShapeError(f"{name}: {argument} must be nested as query is, got {one_line(x)}")
    check_only_jagged(name, others)
    first = layer.batch_first
    (q, k, v), (lengths, *of_keys), padding = padded(query, key, value, batch_first=first)
    if of_keys[0] != lengths or of_keys[1] != lengths:
        raise ShapeError(
            f"{name}: key and value must have as many tokens as query, {lengths}, in strided "
            f"nested tensors, got {of_keys[0]} and {of_keys[1]}; jagged ones may differ"
        )
    output, weights = forward(q, k, v, padding, need_weights, None, average_attn_weights, is_causal)
    return unpadded_like(query, output if first else output.transpose(0, 1), lengths), weights


def padded(*nested: Tensor, batch_first: bool) -> tuple[list[Tensor], list[list[int]], Tensor]:
    """Nested tensors with padding behind each sequence, their lengths, and where the keys have it.

    Args:
        nested: query, key and value.
        batch_first: whether the batch is the first axis of what is returned.
    """
    # A layer knows self-attention by its input's being the same.
    sequences = {id(x): x.unbind() for x in nested}
    tensors = {key: pad_sequence(list(x), batch_first) for key, x in sequences.items()}
    lengths = [[len(one) for one in sequences[id(x)]] for x in nested]
    at = torch.arange(max(lengths[1], default=0), device=nested[1].device)
    padding = at >= torch.tensor(lengths[1], device=at.device)[:, None]
    return [tensors[id(x)] for x in nested], lengths, padding


def unpadded_like(query: Tensor, output: Tensor, lengths: list[int]) -> Tensor:
    """`output (b, i, e)` as a nested tensor like the query, without its padding.

    Args:
        query: nested.
        output: padded.
        lengths: of the queries.
    """
    rows = [row[:length] for row, length in zip(output, lengths, strict=True)]
    # With the query's own offsets, as what is added to it has to have; not where it has gaps.
    if is_jagged(query) and query.lengths() is None:  # pyright: ignore[reportAttributeAccessIssue]
        return jagged_like(torch.cat(rows)[None], query, axis=1)
    return torch.nested.as_nested_tensor(rows, layout=query.layout)


def encoder_of_nested(
    forward: _Forward, attention: _Attention, x: Tensor, others: Mapping[str, Any]
) -> Tensor:
    """What an `EncoderBlock` gives for `x (b, i, e)`, nested like it.

    Args:
        forward: of the block, called with a row.
        attention: of the block.
        x: jagged along i.
        others: by name, what must not be given.

    Raises:
        ShapeError: if `x` is not jagged like this.
        ValueError: as `attention_of_nested`.
    """
    check_jagged("EncoderBlock", "x", x, "b i e", "i")
    check_only_jagged("EncoderBlock", others)
    _check_position("EncoderBlock", attention)
    output = forward(row_of(x, axis=1), documents=documents_of(x, axis=1))
    return jagged_like(output, x, axis=1)


def decoder_of_nested(
    forward: _Forward,
    attention: _Attention,
    cross: _Attention | None,
    x: Tensor,
    memory: Tensor | None,
    others: Mapping[str, Any],
) -> Tensor:
    """What a `DecoderBlock` gives for `x (b, i, e)`, nested like it.

    Args:
        forward: of the block, called with rows.
        attention: of the block.
        cross: likewise.
        x: jagged along i.
        memory: `(b, m, kdim)`, jagged along m, or None.
        others: by name, what must not be given.

    Raises:
        ShapeError: if a tensor is not jagged like this.
        ValueError: as `attention_of_nested`.
    """
    check_jagged("DecoderBlock", "x", x, "b i e", "i")
    check_only_jagged("DecoderBlock", others)
    _check_position("DecoderBlock", attention)
    documents = documents_of(x, axis=1)
    of_memory: dict[str, Tensor] = {}
    if memory is not None:
        check_jagged("DecoderBlock", "memory", memory, "b m kdim", "m")
        check_alike("DecoderBlock", "memory", memory, "x", x)
        lie_alike = have_same_offsets(x, memory, axis=1)
        of_memory = {
            "memory": row_of(memory, axis=1),
            "memory_documents": documents if lie_alike else documents_of(memory, axis=1),
        }
        if cross is not None:
            _check_position("DecoderBlock", cross)
            if not lie_alike:
                _check_order_is_free("DecoderBlock", cross, is_causal=False)
    return jagged_like(forward(row_of(x, axis=1), documents=documents, **of_memory), x, axis=1)


def _check_position(name: str, layer: _Attention) -> None:
    position = layer.position
    if position is not None and not getattr(position, "shift_invariant", False):
        raise ValueError(
            f"{name}: position must depend on offsets alone (shift_invariant) with nested tensors, "
            f"whose sequences lie in one row, got {type(position).__name__}"
        )
    if layer.attend_elsewhere is not None:
        raise ValueError(f"{name}: over several devices tensors must be dense, got nested ones")


def _check_order_is_free(name: str, layer: _Attention, *, is_causal: bool) -> None:
    """Raise unless the order of tokens does not matter: one row's offsets say nothing of others."""
    if layer.position is not None or layer.window is not None or is_causal:
        found = f"{type(layer.position).__name__}, {layer.window} and {is_causal}"
        raise ValueError(
            f"{name}: where nested tensors were not made with the same offsets (x.offsets()), "
            f"position and window must be None and is_causal False, got {found}"
        )
