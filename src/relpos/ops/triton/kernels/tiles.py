"""Tiles of tensors, and what a pair of tokens has besides tables: masks, documents, dropout."""

import triton
import triton.language as tl


@triton.jit
def zeros(M: tl.constexpr, N: tl.constexpr):
    """`(M, N)` in float32."""
    return tl.zeros((M, N), tl.float32)


@triton.jit
def zeros_in_row(N: tl.constexpr):
    """`(N,)` in float32."""
    return tl.zeros((N,), tl.float32)


@triton.jit
def load_rows(x, b, h, rows, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, S: tl.constexpr):
    """Rows `rows` of `x (b, h, count, WIDTH)`: `(len(rows), BLOCK)`, zeros outside."""
    columns = tl.arange(0, BLOCK)
    base = x.data + tl.cast(b, tl.int64) * x.b + tl.cast(h, tl.int64) * x.h
    inside = ((rows >= 0) & (rows < count))[:, None]
    if WIDTH < BLOCK:
        inside = inside & (columns < WIDTH)[None, :]
    if S.long:
        rows = tl.cast(rows, tl.int64)
    return tl.load(base + (rows[:, None] * x.n + columns[None, :]), mask=inside, other=0.0)


@triton.jit
def load_keys(x, call, b, g, j, WIDTH: tl.constexpr, BLOCK: tl.constexpr, S: tl.constexpr):
    """Rows `j` of keys or values `(b, g, j, WIDTH)`; zeros for those that no query ever sees.

    What lies there may be anything, and a weight of 0 would not make it 0.
    """
    count = call.key_length
    if S.causal:
        count = tl.minimum(count, call.start + call.length)
    if S.documents:
        base = call.given.documents.data + tl.cast(b, tl.int64) * call.given.documents.b
        document = tl.load(base + j, mask=(j >= 0) & (j < count), other=-1)
        j = tl.where(document >= 0, j, -1)
    return load_rows(x, b, g, j, count, WIDTH, BLOCK, S)


@triton.jit
def store_rows(
    x, b, h, rows, count, tile, WIDTH: tl.constexpr, BLOCK: tl.constexpr, S: tl.constexpr
):
    """Write `tile (len(rows), BLOCK)` to rows `rows` of `x`, in its dtype."""
    columns = tl.arange(0, BLOCK)
    base = x.data + tl.cast(b, tl.int64) * x.b + tl.cast(h, tl.int64) * x.h
    inside = (rows < count)[:, None] & (columns < WIDTH)[None, :]
    if S.long:
        rows = tl.cast(rows, tl.int64)
    tl.store(
        base + (rows[:, None] * x.n + columns[None, :]),
        tile.to(x.data.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def load_table(table, h, rows, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a table `(h, count, WIDTH)`, the end ones beyond: `(len(rows), BLOCK)`."""
    columns = tl.arange(0, BLOCK)
    rows = tl.minimum(tl.maximum(rows, 0), count - 1)
    base = table.data + tl.cast(h, tl.int64) * table.h
    at = rows[:, None] * WIDTH + columns[None, :]
    if WIDTH < BLOCK:
        return tl.load(base + at, mask=(columns < WIDTH)[None, :], other=0.0)
    return tl.load(base + at)


@triton.jit
def load_table_row(table, h, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row of a table in float32, `(BLOCK,)`."""
    columns = tl.arange(0, BLOCK)
    base = table.data + tl.cast(h, tl.int64) * table.h + row * WIDTH
    return tl.load(base + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def keys_seen(call, b, h, i, j, HIDE: tl.constexpr, EDGE: tl.constexpr, S: tl.constexpr):
    """Whether each pair takes part; `i` and `j` broadcast to the tile. `HIDE`: as causal says."""
    seen = (j >= 0) & (j < call.key_length) if EDGE else j >= 0
    if HIDE:
        seen = seen & (j <= call.start + i)
    if S.documents:
        base = call.given.documents.data + tl.cast(b, tl.int64) * call.given.documents.b
        at = call.start + i
        inside = (i >= 0) & (i < call.length)
        of_query = tl.load(base + at, mask=inside, other=-1)
        of_key = tl.load(base + j, mask=(j >= 0) & (j < call.key_length), other=-1)
        seen = seen & (of_query == of_key) & (of_key >= 0)
    return seen


@triton.jit
def load_mask(call, b, h, i, j, S: tl.constexpr):
    """The mask at pairs of queries `i` and keys `j`, in as few numbers as it has."""
    base = (
        call.given.mask.data
        + tl.cast(b, tl.int64) * call.given.mask.b
        + tl.cast(h, tl.int64) * call.given.mask.h
    )
    if S.mask_i and S.mask_j:
        inside = (i < call.length) & (j >= 0) & (j < call.key_length)
        at = tl.cast(i, tl.int64) * call.given.mask.i + tl.cast(j, tl.int64) * call.given.mask.j
    elif S.mask_i:
        inside = i < call.length
        at = tl.cast(i, tl.int64) * call.given.mask.i
    elif S.mask_j:
        inside = (j >= 0) & (j < call.key_length)
        at = tl.cast(j, tl.int64) * call.given.mask.j
    else:
        inside = i >= 0
        at = tl.cast(tl.zeros_like(i), tl.int64)
    return tl.load(base + at, mask=inside, other=0)


@triton.jit
def weights_kept(call, b, h, i, j):
    """Whether dropout keeps each weight: a function of the seed, the row's number and `j` alone.

    The row's two keys come from Philox (Salmon et al. 2011); a 32-bit mixing function in the form
    of MurmurHash3's last steps takes them together with the column.
    """
    row = (tl.cast(b, tl.int64) * call.given.heads + h) * call.length + i
    low = (row & 0xFFFFFFFF).to(tl.uint32)
    high = (row >> 32).to(tl.uint32)
    one, other, _, _ = tl.philox(tl.load(call.given.seed), low, high, low * 0, low * 0)
    x = j.to(tl.uint32) * 0x9E3779B9 + one
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = x ^ other
    x = (x ^ (x >> 15)) * 0x735A2D97
    x = x ^ (x >> 15)
    return x >= call.given.drop
