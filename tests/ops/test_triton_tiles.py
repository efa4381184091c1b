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

from relpos.ops.triton.kernel_args import KernelSizes  # noqa: E402
from relpos.ops.triton.kernels.masks import survives_dropout  # noqa: E402
from relpos.ops.triton.kernels.regions import BAND  # noqa: E402
from relpos.ops.triton.kernels.scores import tile_scores  # noqa: E402
from relpos.ops.triton.kernels.structs import KernelArgs, Pairs  # noqa: E402
from relpos.ops.triton.kernels.tiles import zeros  # noqa: E402
from relpos.ops.triton.prepared_call import PreparedCall  # noqa: E402
from relpos.ops.triton.specialize import specialize  # noqa: E402
from relpos.ops.triton.tuning import TileShape  # noqa: E402

M, N = 32, 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit(do_not_specialize=KernelSizes._fields)
def scores_kernel(
    inputs, seqlen_q, seqlen_k, query_start, window_first, window_rows, num_tiles,
    scores, survives, TRANSPOSED: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """Write the scores of a tile without dot products, and which weights dropout keeps."""
    args = KernelArgs(inputs, seqlen_q, seqlen_k, query_start, window_first, window_rows, num_tiles)
    i = tl.arange(0, SPEC.block_m)
    j = tl.arange(0, SPEC.block_n)
    if TRANSPOSED:
        pairs = Pairs(1, 1, i[None, :], j[:, None])
        dots = zeros(SPEC.block_n, SPEC.block_m)
    else:
        pairs = Pairs(1, 1, i[:, None], j[None, :])
        dots = zeros(SPEC.block_m, SPEC.block_n)
    at = pairs.i * SPEC.block_n + pairs.j
    tl.store(scores + at, tile_scores(args, pairs, dots, BAND, True, SPEC))
    tl.store(survives + at, survives_dropout(args, pairs).to(tl.int32))


def tile(call: PreparedCall, transposed: bool) -> tuple[Tensor, Tensor]:
    spec = specialize(call, TileShape(M, N, 4, 1), buffers=0, axis_weights=False)
    scores = torch.full((M, N), torch.nan, device=DEVICE)
    survives = torch.full((M, N), -1, dtype=torch.int32, device=DEVICE)
    scores_kernel[(1,)](
        *call.kernel_args(spec, 1, 1), scores, survives, TRANSPOSED=transposed, SPEC=spec
    )
    return scores, survives


@pytest.mark.parametrize("mask_kind", ["boolean", "additive"])
def test_scores_of_a_transposed_tile_are_those_of_the_tile(mask_kind: str):
    draw = torch.Generator().manual_seed(0)
    x = torch.zeros(2, 2, 33, 8)
    mask = torch.randn(2, 2, 33, 33, generator=draw)
    tensors: dict[str, Tensor | None] = {
        "q": x, "k": x, "v": x, "mask": mask > -1 if mask_kind == "boolean" else mask,
        "documents": torch.arange(33).expand(2, -1) // 9, "seed": torch.tensor(5),
    }  # fmt: skip
    for name in ("q_rel", "key_axis_logits", "query_axis_logits", "joint_bias"):
        tensors[name] = None
    tables = {"bias": OffsetTable(torch.randn(2, 20, generator=draw).to(DEVICE), -19)}
    on_device = {name: None if y is None else y.to(DEVICE) for name, y in tensors.items()}
    call = PreparedCall(on_device, tables, None, causal=True, scale=1.0, query_start=0, dropout=0.5)
    (scores, survives), (scores_transposed, survives_transposed) = (
        tile(call, transposed) for transposed in (False, True)
    )
    assert torch.equal(scores, scores_transposed)
    assert torch.equal(survives, survives_transposed)
    assert scores.isfinite().any()
    assert scores.isneginf().any()
    assert set(survives.unique().tolist()) == {0, 1}
