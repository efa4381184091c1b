"""A bias as the other kernels read it: in float32, finite over the scale, with rows to spare."""

import triton
import triton.language as tl

_LARGEST_LOGIT = tl.constexpr(2e38)


@triton.jit(do_not_specialize=("rows", "margin", "scale"))
def bias_rows_kernel(
    x, out, rows, margin, scale, OVER_SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`BLOCK` rows of one head: first and last row again before and after all others.

    Reads:
        x: `(heads, rows)`, contiguous.

    Writes:
        out: `(heads, margin + rows + margin)` float32; over the scale with `OVER_SCALE`.
    """
    width = rows + 2 * margin
    blocks = tl.cdiv(width, BLOCK)
    head = tl.cast(tl.program_id(0) // blocks, tl.int64)
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    row = tl.minimum(tl.maximum(place - margin, 0), rows - 1)
    bias = tl.load(x + head * rows + row).to(tl.float32)
    if OVER_SCALE:
        # Finite numbers have to remain so, over the scale and in bits: a row of such has a softmax.
        largest = _LARGEST_LOGIT * tl.minimum(tl.abs(scale), 1.0)
        clamped = tl.minimum(tl.maximum(bias, -largest), largest)
        bias = tl.where(tl.abs(bias) < float("inf"), clamped, bias) * (1.0 / scale)
    tl.store(out + head * width + place, bias, mask=place < width)
