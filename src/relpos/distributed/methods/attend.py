"""A call over a cut sequence: checked here, compared among ranks, and computed by some method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from ...autocast import autocasts, without_autocast
from ...checks import FLOATING, check_device, check_flag, check_shape, check_tensor, one_line
from ...errors import ShapeError
from ...ops.argument_checks import check_tables
from ...ops.dispatch import check_backend
from ...ops.inputs import DropoutOrigin, Inputs, autocast_dtype, prepare, with_four_axes
from ...ops.locality import AnyKeyRanges, AnyWindow
from ...terms import NO_TERMS, GridTerms, Terms
from ..layout import KeyLayout, Layout, check_key_layout, check_layout, spans_of_shards
from ..ranks.agreement import agree
from ..ranks.facts import call_facts
from ..ranks.group import (
    AnyGroup,
    Ranks,
    check_device_of_group,
    exchange_device,
    resolve_group,
)
from .choice import Method, check_method, choose_method
from .cut_attention import cut_attention
from .cut_call import CutCall
from .heads import heads_attention
from .hybrid import hybrid_attention

__all__ = ["attend"]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | GridTerms,
    *,
    group: AnyGroup,
    layout: Layout,
    key_layout: KeyLayout | None,
    method: Method,
    causal: bool,
    mask: Tensor | None,
    dropout: float,
    scale: float | None,
    query_start: int | None,
    documents: Tensor | None,
    query_documents: Tensor | None,
    window: AnyWindow,
    key_ranges: AnyKeyRanges,
    softcap: float | None,
    backend: str,
    return_lse: bool,
    check: bool,
    all_heads: int | None = None,
    first_head: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Output and log-sum-exp of `relpos.distributed.attention`, also of some heads of a call.

    Its arguments, and `all_heads` and `first_head`: how many heads the call has whose dropout it
    is to draw, and which of them is the first here; None: these are all.

    Returns:
        The output, and the log-sum-exp if it is asked for.
    """
    ranks = resolve_group("attention", group, most_dims=2)
    check_flag("attention", "check", check)
    local, error = None, None
    try:
        _check_choices(layout, key_layout, method, backend)
        check_flag("attention", "return_lse", return_lse)
        local = _prepare(
            q, k, v, terms, mask, documents, query_documents, key_ranges, causal=causal,
            dropout=dropout, scale=scale, query_start=query_start, window=window, softcap=softcap,
        )  # fmt: skip
        check_device_of_group("attention", q, ranks.group)
        if all_heads is not None:
            origin = DropoutOrigin(all_heads, first_head, 0, 0, 0)
            local = replace(local, dropout_origin=origin)
    except Exception as found:
        if not check:
            raise
        error = found
    key_layout = layout if key_layout is None else key_layout
    facts: dict[str, object] = {}
    numbers = (0, 0, 0, 0, 0)
    if local is not None:
        facts = call_facts(
            local,
            query_start=query_start,
            layout=layout,
            key_layout=key_layout,
            method=method,
            window=window,
            backend=backend,
            return_lse=return_lse,
        )
        mesh = ranks.mesh
        facts["group"] = None if mesh is None else (tuple(mesh.shape), mesh.mesh_dim_names)
        facts["whether there are query_documents"] = query_documents is not None
        rows, columns = (1, 1) if local.mask is None else local.mask.shape[2:]
        numbers = (q.shape[2], k.shape[2], rows, columns, _draw_seed(local))
    with without_autocast(q) if isinstance(q, Tensor) else torch.no_grad():
        lengths = _lengths(ranks, facts, numbers, error, check=check)
        assert local is not None
        call = _cut_call(
            ranks, local, lengths, layout, key_layout, query_start=query_start, backend=backend,
            window=window, check=check, has_query_documents=query_documents is not None,
        )  # fmt: skip
        chosen = choose_method(call, method)
        if chosen == "heads":
            output, lse = heads_attention(call, return_lse=return_lse)
        elif chosen == "hybrid":
            output, lse = hybrid_attention(call, method, return_lse=return_lse)
        else:
            output, lse = cut_attention(call, chosen)
    return output, lse if return_lse else None


def _check_choices(layout: object, key_layout: object, method: object, backend: str) -> None:
    check_layout("attention", "layout", layout)
    check_key_layout("attention", key_layout)
    check_method("attention", method)
    check_backend(backend)


def _prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | GridTerms,
    mask: Tensor | None,
    documents: Tensor | None,
    query_documents: Tensor | None,
    key_ranges: AnyKeyRanges,
    *,
    causal: bool,
    dropout: float,
    scale: float | None,
    query_start: int | None,
    window: AnyWindow,
    softcap: float | None,
) -> Inputs:
    """This rank's arguments, checked as far as they alone can be; a mask comes as it is given."""
    tables = terms.tensors if isinstance(terms, Terms | GridTerms) else ()
    named = {"q": q, "k": k, "v": v, "mask": mask, "documents": documents}
    named |= {"query_documents": query_documents, "key_ranges": key_ranges}
    for name, x in [*named.items(), *(("terms", x) for x in tables)]:
        if isinstance(x, DTensor):
            raise TypeError(
                f"attention: {name} must be of plain tensors, which to_local() gives of a shard "
                "and full_tensor() of a table, got DTensor"
            )
    if not (key_ranges is None or isinstance(key_ranges, Tensor)):
        raise TypeError(
            "attention: key_ranges must be one tensor over several devices, not one for each axis, "
            f"got {type(key_ranges).__name__}"
        )
    if documents is not None and query_documents is None:
        query_documents = documents
    grid = terms if isinstance(terms, GridTerms) else None
    if grid is not None and query_start is not None:
        raise ValueError(
            "attention: query_start must be None with GridTerms, which place each token, "
            f"got {one_line(query_start)}"
        )
    local = prepare(
        "attention", q, k, v, terms if grid is None else NO_TERMS, None, documents, key_ranges,
        query_documents, causal=causal, dropout=dropout, scale=scale, query_start=query_start,
        window=window if grid is None else None, softcap=softcap, return_lse=True,
    )  # fmt: skip
    if grid is not None:
        if autocasts(q):
            grid = grid.map(partial(autocast_dtype, q))
        check_tables("attention", local.q, local.v, grid)
        local = replace(local, terms=grid)
    if mask is not None:
        local = replace(local, mask=_checked_mask(mask, local.q))
    return local


def _checked_mask(mask: Tensor, q: Tensor) -> Tensor:
    """A mask with four axes, of which those of the tokens are looked at later."""
    check_tensor("attention", "mask", mask)
    if mask.dtype not in (torch.bool, *FLOATING):
        raise ShapeError(
            f"attention: mask must be boolean (True takes part) or floating point, got {mask.dtype}"
        )
    check_device("attention", "mask", mask, q, "q is")
    mask = with_four_axes(mask)
    sizes = {"b": (1, q.shape[0]), "h": (1, q.shape[1]), "i": (1, q.shape[2])}
    check_shape("attention", "mask", mask, "b h i j", sizes)
    return mask


def _draw_seed(local: Inputs) -> int:
    """The dropout's seed, drawn on every rank, so that their generators go on alike."""
    return int(torch.randint(1 << 62, (), device="cpu")) if local.dropout else 0


@dataclass(frozen=True)
class _Lengths:
    """What each rank says of its shards: tokens, and the sizes of a mask along them."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    mask_queries: tuple[int, ...]
    mask_keys: tuple[int, ...]
    seed: int


def _lengths(
    ranks: Ranks,
    facts: dict[str, object],
    numbers: tuple[int, ...],
    error: Exception | None,
    *,
    check: bool,
) -> _Lengths:
    """The lengths on all ranks and the seed of rank 0; unchecked, they are taken to be as here."""
    if check:
        said = agree(ranks, "attention", facts, numbers, error)
    else:
        said = [numbers] * ranks.size
        if facts["dropout"]:
            seed = torch.tensor(numbers[-1], device=exchange_device(ranks.group))
            with ranks.exchanging("attention", "the seed of the dropout"):
                distributed.broadcast(seed, ranks.global_rank(0), group=ranks.group)
            said = [(*numbers[:-1], int(seed))] * ranks.size
    queries, keys, mask_queries, mask_keys, seeds = zip(*said, strict=True)
    return _Lengths(queries, keys, mask_queries, mask_keys, seeds[0])


def _cut_call(
    ranks: Ranks,
    local: Inputs,
    lengths: _Lengths,
    layout: Layout,
    key_layout: KeyLayout,
    *,
    query_start: int | None,
    window: AnyWindow,
    backend: str,
    check: bool,
    has_query_documents: bool,
) -> CutCall:
    """The call with what is known of all ranks; errors are the same on each."""
    queries, num_queries = spans_of_shards("attention", "q", lengths.queries, layout)
    keys, num_keys = spans_of_shards("attention", "k", lengths.keys, key_layout)
    start = num_keys - num_queries if query_start is None else local.query_start
    alike = queries == keys and start == 0
    if local.documents is not None and not has_query_documents and not alike:
        raise ValueError(
            "attention: query_documents must be given where queries are other tokens than keys, "
            "got documents alone"
        )
    ranges = local.key_ranges
    if ranges is not None:
        ranges = ranges.clamp(0, num_keys)
    seed = torch.tensor(lengths.seed, device=local.q.device) if local.dropout else None
    local = replace(local, query_start=start, key_ranges=ranges, seed=seed)
    travels = local.mask is not None and _mask_travels(lengths, num_keys)
    # Where each rank has one query, one row on each is that of its own, or the same on all.
    has_rows = lengths.mask_queries == lengths.queries
    for what, counts, fits in (
        ("rows", lengths.mask_queries, has_rows), ("columns", lengths.mask_keys, travels)
    ):  # fmt: skip
        if local.mask is not None and not fits and len(set(counts)) > 1:
            raise ShapeError(
                f"attention: mask must have its own {what} on every rank, or one on every rank, "
                f"got {', '.join(map(str, counts))} {what}"
            )
    one_each = max(lengths.keys) == 1 < num_keys and num_queries > 1
    if travels and has_rows and one_each:
        raise ShapeError(
            "attention: mask must have all keys of the whole sequence where each rank has one "
            f"query and one key, since (b, h, 1, 1) may be meant either way, got {num_keys} keys "
            "on as many ranks"
        )
    return CutCall(
        ranks, local, queries, keys, travels, has_rows, backend, check, window,
        whole_keys=key_layout == "whole",
    )  # fmt: skip


def _mask_travels(lengths: _Lengths, num_keys: int) -> bool:
    """Whether the last axis of the mask is that of each rank's own keys."""
    if all(
        rows == 1 and columns == keys
        for rows, columns, keys in zip(
            lengths.mask_queries, lengths.mask_keys, lengths.keys, strict=True
        )
    ):
        return True
    for rank, (columns, keys) in enumerate(zip(lengths.mask_keys, lengths.keys, strict=True)):
        if columns not in (1, num_keys):
            raise ShapeError(
                f"attention: mask must have {num_keys} keys, those of the whole sequence, or with "
                f"one row those {keys} of rank {rank}, got {columns} there"
            )
    return False
