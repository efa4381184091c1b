"""What a grid adds to the scores and weights of a tile `(m, n)`, by products with marks.

`marks (tokens, s)` are 1 in the columns of a token's coordinates along all axes and 0 elsewhere, so
that with numbers `x (b, h, tokens, s)` for each coordinate of the other side's tokens

    numbers of a tile       x (m, s) @ marks (n, s)^T
    sums by coordinate      dS (m, n) @ marks (n, s)

come in the dtype of the inputs: `x` of 16 bits in two parts, whose sum has twice the bits, and
`dS` rounded as for the other gradients. In float16 rows of `x` are divided by a power of two, so
that none is too large. Logits of -inf, of which 0 times would be NaN, are far below all others; one
that is NaN or inf spoils all pairs of its row, hidden ones too. Where there are many coordinates,
`grid_terms.py` reads a number for each pair instead.

Marks are loaded: made in registers from coordinates, those of 16 bits gave wrong products
(`grid_terms.sum_by_coordinate`).

    key_logits, query_marks (m, s)    query_logits, key_marks (n, s)
"""

import triton
import triton.language as tl

from .structs import InTwoParts
from .tiles import load_tokens

# In float16 the largest of a row is up to two to this power.
_BITS_FP16 = tl.constexpr(10.0)


@triton.constexpr_function
def has_key_products(SPEC):
    """Whether logits by coordinate of the key are multiplied with marks."""
    return SPEC.axes_by_product and SPEC.has_key_axis_logits


@triton.constexpr_function
def has_query_products(SPEC):
    """Whether logits by coordinate of the query are multiplied with marks."""
    return SPEC.axes_by_product and SPEC.has_query_axis_logits


@triton.constexpr_function
def has_key_marks(SPEC):
    """Whether something is multiplied with the marks of keys."""
    return SPEC.axes_by_product and (SPEC.has_key_axis_logits or SPEC.has_axis_weights)


@triton.constexpr_function
def _hidden(dtype):
    """What stands for a logit of -inf."""
    return -4e4 if dtype.name == "fp16" else -1e38


@triton.constexpr_function
def _least(dtype):
    """The least of the other logits, which are taken not to be as far above 0."""
    return -1024.0 if dtype.name == "fp16" else -5e36


@triton.constexpr_function
def _between(dtype):
    """A number between the sums over up to eight axes with a hidden one and without."""
    return -2e4 if dtype.name == "fp16" else -7e37


@triton.jit(do_not_specialize=("count",))
def marks_kernel(coordinates, marks, count, AXES: tl.constexpr, M: tl.constexpr, S: tl.constexpr):
    """The marks of `M` tokens.

    Reads:
        coordinates: `(axes, tokens)` int32; -1 for a token off the grid.

    Writes:
        marks: `(tokens, S)`.
    """
    token = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.arange(0, S)
    marked = tl.zeros((M, S), tl.int1)
    for axis in tl.static_range(AXES):
        coordinate = tl.load(coordinates + axis * count + token, mask=token < count, other=-1)
        marked = marked | (coordinate[:, None] == columns[None, :])
    at = tl.cast(token, tl.int64)[:, None] * S + columns[None, :]
    numbers = tl.where(marked, 1.0, 0.0).to(marks.dtype.element_ty)
    tl.store(marks + at, numbers, mask=(token < count)[:, None])


@triton.jit
def load_key_marks(args, j, SPEC: tl.constexpr):
    """The marks of the keys `j`: `(n, s)`; 0 where there are none to load."""
    if has_key_marks(SPEC):
        return load_tokens(
            args.inputs.key_marks, 0, 0, j, args.seqlen_k,
            SPEC.block_key_coordinates, SPEC.block_key_coordinates, SPEC,
        )  # fmt: skip
    else:
        return 0.0


@triton.jit
def load_query_marks(args, i, SPEC: tl.constexpr):
    """The marks of the queries `i`: `(m, s)`; 0 where there are none to load."""
    if has_query_products(SPEC):
        return load_tokens(
            args.inputs.query_marks, 0, 0, i, args.seqlen_q,
            SPEC.block_query_coordinates, SPEC.block_query_coordinates, SPEC,
        )  # fmt: skip
    else:
        return 0.0


@triton.jit
def load_key_logits(args, b, h, i, SPEC: tl.constexpr):
    """The logits of the queries `i` for each key coordinate: `(m, s)` InTwoParts; or 0."""
    if has_key_products(SPEC):
        return load_by_key_coordinate(args.inputs.key_axis_logits, args, b, h, i, True, SPEC)
    else:
        return 0.0


@triton.jit
def load_query_logits(args, b, h, j, SPEC: tl.constexpr):
    """The logits of the keys `j` for each query coordinate: `(n, s)` InTwoParts; or 0."""
    if has_query_products(SPEC):
        x = load_tokens(
            args.inputs.query_axis_logits, b, h, j, args.seqlen_k,
            SPEC.num_query_coordinates, SPEC.block_query_coordinates, SPEC,
        )  # fmt: skip
        return _in_two_parts(x, args.inputs.q.ptr.dtype.element_ty, True)
    else:
        return 0.0


@triton.jit
def load_by_key_coordinate(x, args, b, h, i, ARE_LOGITS: tl.constexpr, SPEC: tl.constexpr):
    """Rows `i` of the TokenTensor `x (b, h, i, s)`: `(m, s)` InTwoParts."""
    rows = load_tokens(
        x, b, h, i, args.seqlen_q, SPEC.num_key_coordinates, SPEC.block_key_coordinates, SPEC
    )
    return _in_two_parts(rows, args.inputs.q.ptr.dtype.element_ty, ARE_LOGITS)


@triton.jit
def _in_two_parts(x, DTYPE: tl.constexpr, ARE_LOGITS: tl.constexpr):
    """`x (tokens, s)` as a sum of two in a dtype, of which the second is 0 in float32."""
    x = x.to(tl.float32)
    factor = 1.0
    if tl.float16 == DTYPE:
        size = tl.abs(x)
        largest = tl.max(tl.where(size < float("inf"), size, 0.0), 1)
        exponent = tl.ceil(tl.log2(tl.maximum(largest, 1e-30))) - _BITS_FP16
        factor = tl.exp2(exponent)
        x *= tl.exp2(-exponent)[:, None]
    if ARE_LOGITS:
        hidden = x == float("-inf")
        x = tl.where(x < _least(DTYPE), _least(DTYPE), x)
        x = tl.where(hidden, _hidden(DTYPE), x)
    high = x.to(DTYPE)
    return InTwoParts(high, (x - high.to(tl.float32)).to(DTYPE), factor)


@triton.jit
def logits_of_axes(key_logits, key_marks, query_logits, query_marks, SPEC: tl.constexpr):
    """What the axes of a grid add to the scores of a tile, in logits: `(m, n)`."""
    if has_key_products(SPEC):
        total = times_marks(key_logits, key_marks, True, SPEC)
        if has_query_products(SPEC):
            total += tl.trans(times_marks(query_logits, query_marks, True, SPEC))
        return total
    elif has_query_products(SPEC):
        return tl.trans(times_marks(query_logits, query_marks, True, SPEC))
    else:
        return 0.0


@triton.jit
def times_marks(x, marks, ARE_LOGITS: tl.constexpr, SPEC: tl.constexpr):
    """The sum of one column of `x (tokens, s)` for each axis, for each token of `marks`.

    `(tokens, other tokens)`.
    """
    total = tl.dot(x.high, tl.trans(marks), input_precision=SPEC.precision)
    if x.high.dtype != tl.float32:
        total = tl.dot(x.low, tl.trans(marks), total)
    found = total
    if x.high.dtype == tl.float16:
        found = total * x.factor[:, None]
    if ARE_LOGITS:
        found = tl.where(total < _between(x.high.dtype), float("-inf"), found)
    return found


@triton.jit
def sum_by_marks(x, marks, SPEC: tl.constexpr):
    """`x (tokens, other tokens)` summed by coordinate of the others: `(tokens, s)`."""
    return tl.dot(x.to(marks.dtype), marks, input_precision=SPEC.precision)
