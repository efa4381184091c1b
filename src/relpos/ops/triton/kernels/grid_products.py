"""What a grid adds to the scores and weights of a tile `(m, n)`, by products with marks.

`marks (tokens, s)` are 1 in the columns of a token's coordinates along all axes and 0 elsewhere, so
that with logits `x (b, h, tokens, s)` for each coordinate of the other side's tokens

    logits of a tile        x (m, s) @ marks (n, s)^T
    sums by coordinate      dS (m, n) @ marks (n, s)

are exact but for the rounding of `x` and of `dS`, which are multiplied in the dtype of the inputs:
`x` of 16 bits in two parts, of which the sum has twice the bits. Where there are many coordinates,
`grid_terms.py` reads a number for each pair instead.

    key_high, key_low, query_marks (m, s)    query_high, query_low, key_marks (n, s)
"""

import triton
import triton.language as tl

from .tiles import load_tokens

# What stands for a logit of -inf, of which 0 times would be NaN; and where those end.
_LOWEST = tl.constexpr({"fp16": -6e4, "bf16": -1e30, "fp32": -1e30})
_HIGHEST_FP16 = tl.constexpr(6e4)


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
def _lowest(dtype):
    return _LOWEST.value[dtype.name]


@triton.jit
def load_key_marks(args, j, SPEC: tl.constexpr):
    """Those of the keys `j`: `(n, s)`; 0 where there are none to load."""
    if has_key_marks(SPEC):
        return load_tokens(
            args.inputs.key_marks, 0, 0, j, args.seqlen_k,
            SPEC.block_key_coordinates, SPEC.block_key_coordinates, SPEC,
        )  # fmt: skip
    else:
        return 0.0


@triton.jit
def load_query_marks(args, i, SPEC: tl.constexpr):
    """Those of the queries `i`: `(m, s)`; 0 where there are none to load."""
    if has_query_products(SPEC):
        return load_tokens(
            args.inputs.query_marks, 0, 0, i, args.seqlen_q,
            SPEC.block_query_coordinates, SPEC.block_query_coordinates, SPEC,
        )  # fmt: skip
    else:
        return 0.0


@triton.jit
def load_key_logits(args, b, h, i, SPEC: tl.constexpr):
    """Those of the queries `i`, for each coordinate of a key: `(m, s)` in two parts; or 0."""
    if has_key_products(SPEC):
        return load_by_key_coordinate(args.inputs.key_axis_logits, args, b, h, i, SPEC)
    else:
        return 0.0, 0.0


@triton.jit
def load_query_logits(args, b, h, j, SPEC: tl.constexpr):
    """Those of the keys `j`, for each coordinate of a query: `(n, s)` in two parts; or 0."""
    if has_query_products(SPEC):
        x = load_tokens(
            args.inputs.query_axis_logits, b, h, j, args.seqlen_k,
            SPEC.num_query_coordinates, SPEC.block_query_coordinates, SPEC,
        )  # fmt: skip
        return _in_two_parts(x, args.inputs.q.ptr.dtype.element_ty)
    else:
        return 0.0, 0.0


@triton.jit
def load_by_key_coordinate(x, args, b, h, i, SPEC: tl.constexpr):
    """Rows `i` of the TokenTensor `x (b, h, i, s)`, in two parts: `(m, s)` each."""
    rows = load_tokens(
        x, b, h, i, args.seqlen_q, SPEC.num_key_coordinates, SPEC.block_key_coordinates, SPEC
    )
    return _in_two_parts(rows, args.inputs.q.ptr.dtype.element_ty)


@triton.jit
def _in_two_parts(x, DTYPE: tl.constexpr):
    """`x` as a sum of two in a dtype, of which the second is 0 in float32."""
    x = x.to(tl.float32)
    x = tl.where(x < _lowest(DTYPE), _lowest(DTYPE), x)
    if tl.float16 == DTYPE:
        x = tl.where(x > _HIGHEST_FP16, _HIGHEST_FP16, x)
    high = x.to(DTYPE)
    return high, (x - high.to(tl.float32)).to(DTYPE)


@triton.jit
def logits_of_axes(
    key_high, key_low, key_marks, query_high, query_low, query_marks, SPEC: tl.constexpr
):
    """What the axes of a grid add to the scores of a tile, in logits: `(m, n)`."""
    if has_key_products(SPEC):
        total = times_marks(key_high, key_low, key_marks, SPEC)
        if has_query_products(SPEC):
            total += tl.trans(times_marks(query_high, query_low, query_marks, SPEC))
        return total
    elif has_query_products(SPEC):
        return tl.trans(times_marks(query_high, query_low, query_marks, SPEC))
    else:
        return 0.0


@triton.jit
def times_marks(high, low, marks, SPEC: tl.constexpr):
    """The sum of one column of `high + low (tokens, s)` per axis for each other token of `marks`.

    `(tokens, other tokens)`.
    """
    total = tl.dot(high, tl.trans(marks), input_precision=SPEC.precision)
    if high.dtype != tl.float32:
        total = tl.dot(low, tl.trans(marks), total)
    return tl.where(total < _lowest(high.dtype) / 2, float("-inf"), total)


@triton.jit
def sum_by_marks(x, marks, SPEC: tl.constexpr):
    """`x (tokens, other tokens)` summed by coordinate of the others: `(tokens, s)`."""
    return tl.dot(x.to(marks.dtype), marks, input_precision=SPEC.precision)
