"""Which pairs take part, and which weights dropout keeps.

Functions of pairs take queries `i` and keys `j` that broadcast to the tile (`structs.Pairs`),
and return what does.
"""

import triton
import triton.language as tl

from .grid_terms import in_axis_windows


@triton.jit
def takes_part(args, pairs, HIDE_AHEAD: tl.constexpr, CHECK_END: tl.constexpr, SPEC: tl.constexpr):
    """Whether each pair takes part.

    Args:
        args: of the kernel.
        pairs: of the tile.
        HIDE_AHEAD: whether keys ahead of the query are hidden.
        CHECK_END: whether some `j` may be beyond the last key.
        SPEC: of the kernel.
    """
    i, j = pairs.i, pairs.j
    # Without a check: a constant, of which nothing is left when it is compiled.
    visible = (j >= 0) & (j < args.seqlen_k) if CHECK_END else tl.zeros_like(j) == 0
    if HIDE_AHEAD:
        visible = visible & (pairs.c <= args.query_start + i - pairs.j0)
    if SPEC.has_documents:
        documents, query_documents = args.inputs.documents, args.inputs.query_documents
        of_keys = documents.ptr + tl.cast(pairs.b, tl.int64) * documents.stride_b
        of_queries = query_documents.ptr + tl.cast(pairs.b, tl.int64) * query_documents.stride_b
        inside = (i >= 0) & (i < args.seqlen_q)
        of_query = tl.load(of_queries + i, mask=inside, other=-1)
        of_key = tl.load(of_keys + j, mask=(j >= 0) & (j < args.seqlen_k), other=-1)
        visible = visible & (of_query == of_key) & (of_key >= 0)
    if SPEC.has_min_offset:
        visible = visible & (pairs.c >= args.query_start + i + args.min_offset - pairs.j0)
    if SPEC.has_max_offset:
        visible = visible & (pairs.c <= args.query_start + i + args.max_offset - pairs.j0)
    if SPEC.has_key_ranges:
        row = tl.cast(pairs.b, tl.int64) * args.seqlen_q + i
        key_range = args.inputs.key_ranges + row * 2
        inside = (i >= 0) & (i < args.seqlen_q)
        first = tl.load(key_range, mask=inside, other=0)
        end = tl.load(key_range + 1, mask=inside, other=0)
        visible = visible & (first <= j) & (j < end)
    if SPEC.has_axis_windows:
        visible = visible & in_axis_windows(args, pairs, SPEC.num_axes)
    return visible


@triton.jit
def load_mask(args, pairs, SPEC: tl.constexpr):
    """The mask at the pairs, in as few numbers as it has."""
    i, j = pairs.i, pairs.j
    mask = args.inputs.mask
    base = (
        mask.ptr
        + tl.cast(pairs.b, tl.int64) * mask.stride_b
        + tl.cast(pairs.h, tl.int64) * mask.stride_h
    )
    if SPEC.mask_has_i and SPEC.mask_has_j:
        inside = (i < args.seqlen_q) & (j >= 0) & (j < args.seqlen_k)
        at = tl.cast(i, tl.int64) * mask.stride_i + tl.cast(j, tl.int64) * mask.stride_j
    elif SPEC.mask_has_i:
        inside = i < args.seqlen_q
        at = tl.cast(i, tl.int64) * mask.stride_i
    elif SPEC.mask_has_j:
        inside = (j >= 0) & (j < args.seqlen_k)
        at = tl.cast(j, tl.int64) * mask.stride_j
    else:
        inside = i >= 0
        at = tl.cast(tl.zeros_like(i), tl.int64)
    return tl.load(base + at, mask=inside, other=0)


@triton.jit
def survives_dropout(args, pairs, SPEC: tl.constexpr):
    """Whether dropout keeps each weight: a function of the seed, the row's number and `j` alone.

    The row's two keys come from Philox (Salmon et al. 2011); a 32-bit mixing function in the form
    of MurmurHash3's last steps takes them together with the column. In a part of a larger call, row
    and column are those of the larger one.
    """
    inputs = args.inputs
    key = pairs.j
    if SPEC.has_dropout_origin:
        origin = inputs.dropout_origin
        row = tl.cast(pairs.b, tl.int64) * tl.load(origin) + tl.load(origin + 1) + pairs.h
        row = row * tl.load(origin + 2) + tl.load(origin + 3) + pairs.i
        key += tl.load(origin + 4)
    else:
        row = (tl.cast(pairs.b, tl.int64) * inputs.heads + pairs.h) * args.seqlen_q + pairs.i
    low = (row & 0xFFFFFFFF).to(tl.uint32)
    high = (row >> 32).to(tl.uint32)
    first, second, _, _ = tl.philox(tl.load(inputs.seed), low, high, low * 0, low * 0)
    mixed = key.to(tl.uint32) * 0x9E3779B9 + first
    mixed = (mixed ^ (mixed >> 16)) * 0x21F0AAAD
    mixed = mixed ^ second
    mixed = (mixed ^ (mixed >> 15)) * 0x735A2D97
    mixed = mixed ^ (mixed >> 15)
    return mixed >= inputs.dropout_threshold
