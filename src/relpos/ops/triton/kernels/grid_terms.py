"""What a grid adds to scores and weights, by the coordinates of its tokens.

`x (b, h, tokens, s)` has a number for each coordinate of the other side's tokens, axis after axis;
`coordinates (axes, others)` has the number of a token's coordinate along an axis, a column of `x`,
or -1 for a token off the grid. So a pair's number is the sum of one column for each axis.
"""

import triton
import triton.language as tl


@triton.jit
def sum_over_axes(x, coordinates, b, h, tokens, count, others, others_count, AXES: tl.constexpr):
    """`sum_axis x[b, h, tokens, coordinates[axis, others]]`; tokens off the grid add nothing.

    Args:
        x: TokenTensor `(b, h, count, s)`.
        coordinates: `(axes, others_count)` int32.
        b: number of the sequence.
        h: number of the query head.
        tokens: numbers of the tokens that `x` has rows for; they broadcast with `others`.
        count: how many there are.
        others: numbers of the tokens on the other side.
        others_count: how many there are.
        AXES: of the grid.
    """
    base = x.ptr + tl.cast(b, tl.int64) * x.stride_b + tl.cast(h, tl.int64) * x.stride_h
    rows = base + tl.cast(tokens, tl.int64) * x.stride_n
    total = tl.zeros_like(tokens + others).to(tl.float32)
    known = (others >= 0) & (others < others_count)
    for axis in tl.static_range(AXES):
        coordinate = tl.load(coordinates + axis * others_count + others, mask=known, other=-1)
        inside = (coordinate >= 0) & (tokens >= 0) & (tokens < count)
        total += tl.load(rows + coordinate, mask=inside, other=0.0)
    return total


@triton.jit
def by_key_coordinate(x, args, pairs, AXES: tl.constexpr):
    """What `x (b, h, i, s)` has for the coordinates of each pair's key."""
    return sum_over_axes(
        x, args.inputs.key_coordinates, pairs.b, pairs.h, pairs.i, args.seqlen_q,
        pairs.j, args.seqlen_k, AXES,
    )  # fmt: skip


@triton.jit
def by_query_coordinate(x, args, pairs, AXES: tl.constexpr):
    """What `x (b, h, j, s)` has for the coordinates of each pair's query."""
    return sum_over_axes(
        x, args.inputs.query_coordinates, pairs.b, pairs.h, pairs.j, args.seqlen_k,
        pairs.i, args.seqlen_q, AXES,
    )  # fmt: skip


@triton.jit
def grid_logits(args, pairs, of_axes, SPEC: tl.constexpr):
    """What a grid adds to the scores of the pairs, in logits; the axes add `of_axes`, if known."""
    BY_PAIR: tl.constexpr = of_axes is None or not SPEC.axes_by_product
    total = tl.zeros_like(pairs.i + pairs.j).to(tl.float32)
    if not BY_PAIR:
        total += of_axes
    if SPEC.has_key_axis_logits and BY_PAIR:
        total += by_key_coordinate(args.inputs.key_axis_logits, args, pairs, SPEC.num_axes)
    if SPEC.has_query_axis_logits and BY_PAIR:
        total += by_query_coordinate(args.inputs.query_axis_logits, args, pairs, SPEC.num_axes)
    if SPEC.has_joint_bias:
        entry, on_grid = joint_bias_entry(args, pairs)
        table = args.inputs.joint_bias
        base = table.ptr + tl.cast(pairs.h, tl.int64) * table.stride_h
        total += tl.load(base + entry, mask=on_grid, other=0.0).to(tl.float32)
    return total


@triton.jit
def joint_bias_entry(args, pairs):
    """The entry of the joint bias for each pair, and whether both its tokens are on the grid."""
    key_known = (pairs.j >= 0) & (pairs.j < args.seqlen_k)
    query_known = pairs.i < args.seqlen_q
    key_coordinate = tl.load(args.inputs.key_coordinates + pairs.j, mask=key_known, other=-1)
    query_coordinate = tl.load(args.inputs.query_coordinates + pairs.i, mask=query_known, other=-1)
    of_key = tl.load(args.inputs.key_joint_index + pairs.j, mask=key_known, other=0)
    of_query = tl.load(args.inputs.query_joint_index + pairs.i, mask=query_known, other=0)
    return of_key - of_query, (key_coordinate >= 0) & (query_coordinate >= 0)


@triton.jit
def in_axis_windows(args, pairs, AXES: tl.constexpr):
    """Whether each key is in the query's windows and ranges along all axes, or off the grid."""
    key_known = (pairs.j >= 0) & (pairs.j < args.seqlen_k)
    query_known = pairs.i < args.seqlen_q
    inside = key_known & query_known
    windows = args.inputs.axis_windows
    of_sequence = windows.ptr + tl.cast(pairs.b, tl.int64) * windows.stride_b
    for axis in tl.static_range(AXES):
        coordinates = args.inputs.key_coordinates + axis * args.seqlen_k
        coordinate = tl.load(coordinates + pairs.j, mask=key_known, other=-1)
        window = of_sequence + (axis * args.seqlen_q + pairs.i) * 2
        first = tl.load(window, mask=query_known, other=0)
        last = tl.load(window + 1, mask=query_known, other=0)
        inside = inside & ((coordinate < 0) | ((first <= coordinate) & (coordinate <= last)))
    return inside


@triton.jit
def sum_by_coordinate(x, coordinates, tokens, count, AXES: tl.constexpr, BLOCK: tl.constexpr):
    """`x (m, tokens)` in float32 summed over the tokens of each coordinate: `(m, BLOCK)`.

    The product is made in float32 whatever the inputs are: that of Triton 3.6 with marks of 16 bits
    was wrong on an H200, as far as was seen where a thread has fewer than 16 of them.
    """
    marks = _marks(coordinates, tokens, count, 0, BLOCK)
    for axis in tl.static_range(1, AXES):
        marks = marks | _marks(coordinates, tokens, count, axis, BLOCK)
    return tl.dot(x, marks.to(tl.float32), input_precision="ieee")


@triton.jit
def _marks(coordinates, tokens, count, axis, BLOCK: tl.constexpr):
    """`(tokens, BLOCK)`: whether a column is that of a token's coordinate along an axis."""
    coordinate = tl.load(coordinates + axis * count + tokens, mask=tokens < count, other=-1)
    return coordinate[:, None] == tl.arange(0, BLOCK)[None, :]
