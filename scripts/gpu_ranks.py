"""Attention over several GPUs against one of them: each method and layout, forward and backward.

torchrun --nproc-per-node 4 -m scripts.gpu_ranks
torchrun --nproc-per-node 2 -m scripts.gpu_ranks --device cpu     # by gloo, to try it
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
from torch import Tensor, distributed

import relpos
import relpos.distributed as cut
from relpos import OffsetTable, Terms

METHODS = ("heads", "gather", "ring")
LAYOUTS: tuple[cut.Layout, ...] = ("zigzag", "contiguous")
# Of the largest number, for sums of 2048 keys in another order: in float32 some times sqrt(2048)
# roundings, in bfloat16 four of the result.
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def main() -> int:
    """Every method, layout and dtype; 1 if one of them is too far off."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--length", type=int, default=2048, help="in tokens (2048)")
    options = parser.parse_args()
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if options.device == "cuda" else "gloo")
    failed = 0
    try:
        for dtype in BOUNDS:
            for method in METHODS:
                for layout in LAYOUTS:
                    failed += check(options.device, options.length, dtype, method, layout)
    finally:
        distributed.destroy_process_group()
    return int(failed > 0)


def check(device: str, length: int, dtype: torch.dtype, method: str, layout: cut.Layout) -> bool:
    """Print how far output and gradients are from those of one device; whether that is too far."""
    group, size = distributed.group.WORLD, distributed.get_world_size()
    assert group is not None
    draw = torch.Generator().manual_seed(0)
    heads, width = 2 * size, 64
    shapes = [(1, heads, length, width)] * 3 + [(heads, 65, width), (1, 129, width)]
    whole = [torch.randn(s, generator=draw).to(device, dtype).requires_grad_() for s in shapes]

    def own(x: Tensor) -> Tensor:
        return cut.shard(x.detach(), group, layout, 2).requires_grad_()

    local = [*(own(x) for x in whole[:3]), *(x.detach().requires_grad_() for x in whole[3:])]
    q, k, v = whole[:3]
    expected = relpos.attention(q, k, v, terms(whole), causal=True)
    found = cut.attention(
        *local[:3], terms(local), group=group, layout=layout, method=method, causal=True
    )  # type: ignore[call-overload]
    expected.float().square().sum().backward()
    found.float().square().sum().backward()
    pairs = [(found, own(expected))]
    for number, (one, other) in enumerate(zip(local, whole, strict=True)):
        assert one.grad is not None
        assert other.grad is not None
        if number < 3:
            pairs.append((one.grad, own(other.grad)))
        else:
            total = one.grad.float()
            distributed.all_reduce(total)
            pairs.append((total, other.grad))
    worst = torch.stack([
        (x.float() - y.float()).abs().max() / y.float().abs().max() for x, y in pairs
    ]).max().detach()  # fmt: skip
    distributed.all_reduce(worst, distributed.ReduceOp.MAX)
    wrong = not worst.item() <= BOUNDS[dtype]
    if distributed.get_rank() == 0:
        word = "missed" if wrong else "ok"
        print(f"{word}: {method}, {layout}, {dtype}: {worst.item():.1e} of the largest", flush=True)
    return wrong


def terms(tensors: list[Tensor]) -> Terms:
    """Shaw's keys of each head, and values that heads share."""
    return Terms(keys=OffsetTable(tensors[3], -64), values=OffsetTable(tensors[4], -64))


if __name__ == "__main__":
    sys.exit(main())
