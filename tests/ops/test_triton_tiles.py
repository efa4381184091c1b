"""Helpers of the Triton kernels by themselves: what they say of the forms that a tile may have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relpos import OffsetTable, backends

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("quick_interpreter"),
]
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from relpos.ops.triton.call_plan import CallSettings  # noqa: E402
from relpos.ops.triton.kernel_args import KernelSizes  # noqa: E402
from relpos.ops.triton.kernels.masks import survives_dropout  # noqa: E402
from relpos.ops.triton.kernels.regions import BAND  # noqa: E402
from relpos.ops.triton.kernels.scores import tanh, tile_scores  # noqa: E402
from relpos.ops.triton.kernels.shear import (  # noqa: E402
    block_by_offset,
    by_key,
    by_offset,
    parts_by_offset,
    shear,
    shear_transposed,
)
from relpos.ops.triton.kernels.structs import KernelArgs, Pairs  # noqa: E402
from relpos.ops.triton.kernels.tiles import zeros  # noqa: E402
from relpos.ops.triton.prepared_call import PreparedCall  # noqa: E402
from relpos.ops.triton.specialize import specialize  # noqa: E402
from relpos.ops.triton.tuning import TileShape  # noqa: E402

M, N = 32, 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit(do_not_specialize=KernelSizes._fields)
def scores_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    scores, slope, survives, TRANSPOSED: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """Write a tile's scores without dot products, their cap's slope, and what dropout keeps."""
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    i = tl.arange(0, SPEC.block_m)
    j = tl.arange(0, SPEC.block_n)
    if TRANSPOSED:
        pairs = Pairs(1, 1, i[None, :], j[:, None], 0, j[:, None])
        dots = zeros(SPEC.block_n, SPEC.block_m)
    else:
        pairs = Pairs(1, 1, i[:, None], j[None, :], 0, j[None, :])
        dots = zeros(SPEC.block_m, SPEC.block_n)
    at = pairs.i * SPEC.block_n + pairs.j
    tile, tile_slope = tile_scores(args, pairs, dots, None, BAND, True, SPEC)
    tl.store(scores + at, tile)
    tl.store(slope + at, tile_slope)
    tl.store(survives + at, survives_dropout(args, pairs, SPEC).to(tl.int32))


def tile(call: PreparedCall, transposed: bool) -> tuple[Tensor, Tensor, Tensor]:
    spec = specialize(call, TileShape(M, N, 4, 1))
    scores, slope = torch.full((2, M, N), torch.nan, device=DEVICE)
    survives = torch.full((M, N), -1, dtype=torch.int32, device=DEVICE)
    scores_kernel[(1,)](
        *call.kernel_args(spec, 1), scores, slope, survives, TRANSPOSED=transposed, SPEC=spec
    )
    return scores, slope, survives


@pytest.mark.parametrize("mask_kind", ["boolean", "additive"])
def test_scores_of_a_transposed_tile_are_those_of_the_tile(mask_kind: str):
    draw = torch.Generator().manual_seed(0)
    x = torch.zeros(2, 2, 33, 8)
    mask = torch.randn(2, 2, 33, 33, generator=draw)
    tensors: dict[str, Tensor | None] = {
        "q": x, "k": x, "v": x, "mask": mask > -1 if mask_kind == "boolean" else mask,
        "documents": torch.arange(33).expand(2, -1) // 9, "query_documents": None,
        "key_ranges": torch.tensor([1, 31]).expand(1, 33, 2), "seed": torch.tensor(5),
    }  # fmt: skip
    for name in ("q_rel", "key_axis_logits", "query_axis_logits", "joint_bias"):
        tensors[name] = None
    tables = {"bias": OffsetTable(torch.randn(2, 20, generator=draw).to(DEVICE), -19)}
    on_device = {name: None if y is None else y.to(DEVICE) for name, y in tensors.items()}
    call = PreparedCall(
        on_device, tables,
        CallSettings(None, True, 1.0, 0, 0.5, "ieee", window=((6, 3),), softcap=2.0),
    )  # fmt: skip
    results, transposed = (tile(call, transposed) for transposed in (False, True))
    for found, found_transposed in zip(results, transposed, strict=True):
        assert torch.equal(found, found_transposed)
    scores, _, survives = results
    assert scores.isfinite().any()
    assert scores.isneginf().any()
    assert set(survives.unique().tolist()) == {0, 1}


@triton.jit
def tanh_kernel(x, SIZE: tl.constexpr):
    at = x + tl.arange(0, SIZE)
    tl.store(at, tanh(tl.load(at)))


def test_tanh_is_exact_to_a_few_units_in_the_last_place():
    """Near 0, where a difference of exponentials would cancel, and far from it."""
    sizes = torch.logspace(-30, 2, 4096, dtype=torch.float64).float()
    x = torch.cat([sizes, -sizes]).to(DEVICE)
    found = x.clone()
    tanh_kernel[(1,)](found, SIZE=x.numel())
    exact = x.double().tanh()
    assert ((found - exact).abs() / exact.abs()).max() < 4 * torch.finfo(torch.float32).eps


def test_tanh_of_infinity_is_one():
    x = torch.tensor([torch.inf, -torch.inf, 0.0, 1e38], device=DEVICE)
    tanh_kernel[(1,)](x, SIZE=4)
    assert x.tolist() == [1.0, -1.0, 0.0, 1.0]


@triton.jit
def shear_kernel(
    older, newer, first, out, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    columns = tl.load(first + tl.arange(0, M))
    tile = shear(tl.load(older + at), tl.load(newer + at), columns, STEP, TRANSPOSED)
    tl.store(out + at, tl.trans(tile) if TRANSPOSED else tile)


@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 16), (64, 64), (16, 64), (128, 8)])
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("transposed", [False, True])
def test_each_row_is_read_from_its_column_on(m: int, n: int, step: int, transposed: bool):
    older, newer = torch.randn(2, m, n, device=DEVICE)
    first = torch.randint(n + 1, (m,)) if step == 1 else torch.randint(n - 1, 2 * n, (m,))
    out = torch.empty_like(older)
    first = first.to(DEVICE, torch.int32)
    shear_kernel[(1,)](older, newer, first, out, m, n, step, transposed)
    columns = first[:, None] + step * torch.arange(n, device=DEVICE)[None, :]
    assert torch.equal(out, torch.cat([older, newer], 1).gather(1, columns))


@triton.jit
def shear_transposed_kernel(x, first, out, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    rows = tl.load(first + tl.arange(0, N))
    back = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
    tl.store(out + back, shear_transposed(tl.load(x + at), rows, STEP))


@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 16), (64, 64), (128, 8)])
@pytest.mark.parametrize("step", [1, -1])
def test_each_column_is_read_from_its_row_on(m: int, n: int, step: int):
    x = torch.randn(m, n, device=DEVICE)
    first = torch.randint(m + 1, (n,)) if step == 1 else torch.randint(m - 1, 2 * m, (n,))
    out = torch.empty(n, m, device=DEVICE)
    shear_transposed_kernel[(1,)](x, first.to(DEVICE, torch.int32), out, m, n, step)
    rows = first[None, :] + step * torch.arange(m)[:, None]
    assert torch.equal(out.T, torch.cat([x, x]).gather(0, rows.to(DEVICE)))


@triton.jit
def by_key_kernel(blocks, keys, offsets, back, M: tl.constexpr, N: tl.constexpr):
    """Of `blocks (m / n + 1, m, n)` the tile by key, that by offset, and the former's blocks."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    loaded = ()
    for t in tl.static_range(M // N + 1):
        loaded = loaded + (tl.load(blocks + t * M * N + at),)  # noqa: RUF005
    tile = by_key(loaded)
    tl.store(keys + at, tile)
    tl.store(offsets + at, by_offset(loaded))
    older, newer = parts_by_offset(tile)
    for t in tl.static_range(M // N + 1):
        tl.store(back + t * M * N + at, block_by_offset(older, newer, t))


@pytest.mark.parametrize(("m", "n"), [(16, 16), (32, 16), (64, 64), (64, 16), (128, 32)])
def test_blocks_by_offset_are_a_tile_by_key_and_the_reverse(m: int, n: int):
    blocks = torch.randn(m // n + 1, m, n, device=DEVICE)
    keys, offsets, back = (torch.empty(size, m, n, device=DEVICE) for size in (1, 1, m // n + 1))
    by_key_kernel[(1,)](blocks, keys, offsets, back, m, n)
    rows = blocks.transpose(0, 1).reshape(m, m + n)
    a, c = torch.arange(m, device=DEVICE)[:, None], torch.arange(n, device=DEVICE)[None, :]
    assert torch.equal(keys[0], rows.gather(1, c + m - 1 - a))
    assert torch.equal(offsets[0], rows.gather(1, a + c))
    wanted = torch.zeros_like(rows).scatter(1, c + m - 1 - a, keys[0])
    assert torch.equal(back.transpose(0, 1).reshape(m, m + n), wanted)
