"""Attention over several processes: time, bytes, memory, and whether sending is hidden.

Ranks are processes of one thread, pinned to a core each while there are as many cores. One process
of one thread and one of as many threads as ranks stand beside two ranks in the same rounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from math import prod
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import relpos
import relpos.distributed as cut
from relpos import OffsetTable, Terms
from relpos.distributed.cost import Cluster, Cost, Shape, cost
from relpos.distributed.ranks.exchange import Transfer, count_bytes, record_timeline
from relpos.distributed.ranks.group import resolve_group
from relpos_tasks.machine import status_mib

from .passes import BOTH, FORWARD
from .ranks import Pool
from .timing import percentiles

__all__ = ["METHODS", "ONE_DEVICE", "formula_mib", "measure_bytes", "measure_memory",
           "measure_plan", "measure_time", "measure_timeline"]  # fmt: skip

METHODS = ("heads", "gather", "ring")
# Of four ranks in a mesh of two dimensions, by the method along the first.
MESH = (2, 2)
ON_A_MESH = {f"{method} on {MESH[0]} x {MESH[1]}": method for method in ("gather", "ring")}
ONE_THREAD, TWO_THREADS = "one process, one thread", "one process, two threads"
ONE_DEVICE = "one device"
_HEADS, _WIDTH, _DISTANCE = 8, 64, 64
# Of which bytes and memory are measured; and how often each contender is timed.
RANKS, ROUNDS = (2, 4), 9
# Tokens of which results are compared with those in float64.
PAIRS = 1024


class Sizes(NamedTuple):
    """Of one measured attention: causal, with Shaw's keys and values, in float32."""

    length: int
    heads: int = _HEADS
    width: int = _WIDTH

    def shape(self, ranks: int, method: str = "") -> Shape:
        """For the cost model."""
        inner = MESH[1] if method in ON_A_MESH else 1
        return Shape(
            self.length, ranks, self.heads, head_dim=self.width, element_bytes=4, inner=inner
        )


def methods_of(ranks: int) -> tuple[str, ...]:
    """What so many ranks are measured by."""
    return (*METHODS, *(ON_A_MESH if ranks == prod(MESH) else ()))


def tensors_of(sizes: Sizes, length: int) -> list[Tensor]:
    """q, k, v, and the tables of Shaw's keys and values."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(1, sizes.heads, length, sizes.width)] * 3 + [(1, 2 * _DISTANCE + 1, sizes.width)] * 2
    return [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]


def run_once(tensors: list[Tensor], method: str | None, *, backward: bool) -> None:
    """One pass of this rank's tensors; without a method on one device."""
    q, k, v, keys, values = tensors
    terms = _terms(keys, values)
    options: dict[str, Any] = {}
    if method is not None:
        group = _mesh() if method in ON_A_MESH else distributed.group.WORLD
        options = {"group": group, "method": ON_A_MESH.get(method, method)}
    attend: Callable[..., Tensor] = relpos.attention if method is None else cut.attention
    with torch.set_grad_enabled(backward):
        output = attend(q, k, v, terms, causal=True, **options)
    if backward:
        output.backward(torch.ones_like(output))
        for x in tensors:
            x.grad = None


@cache
def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", MESH, mesh_dim_names=("outer", "inner"))


@cache
def _tensors(sizes: Sizes, length: int) -> list[Tensor]:
    """The same ones from question to question."""
    return tensors_of(sizes, length)


def _seconds(rank: int, size: int, contender: str, sizes: Sizes, backward: bool) -> float:
    """The time of one pass; of ranks that are not in it 0."""
    method = None if contender in (ONE_THREAD, TWO_THREADS) else contender
    cores = sorted(os.sched_getaffinity(0) | set(range(os.cpu_count() or 1)))
    threads = 2 if contender == TWO_THREADS else 1
    if method is None and rank:
        return 0.0
    os.sched_setaffinity(0, cores if threads > 1 else {cores[rank % len(cores)]})
    torch.set_num_threads(threads)
    length = sizes.length if method is None else _tokens(sizes.length, rank, size)
    tensors = _tensors(sizes, length)
    if method is not None:
        distributed.barrier()
    start = time.perf_counter()
    run_once(tensors, method, backward=backward)
    return time.perf_counter() - start


def _tokens(length: int, rank: int, size: int) -> int:
    group = distributed.group.WORLD
    assert group is not None
    return sum(end - first for first, end in cut.spans(length, group, rank=rank))


def _difference(rank: int, size: int, method: str, sizes: Sizes) -> float:
    """How far the output lies from that in float64 on one device, over its largest number."""
    group = distributed.group.WORLD
    assert group is not None
    whole = [x.detach() for x in tensors_of(sizes, sizes.length)]
    q, k, v = (cut.shard(x, group, dim=2) for x in whole[:3])
    options: dict[str, Any] = {"group": group, "method": method, "causal": True}
    found = cut.attention(q, k, v, _terms(*whole[3:]), **options)
    q, k, v, keys, values = (x.double() for x in whole)
    expected = relpos.attention(q, k, v, _terms(keys, values), causal=True, backend="reference")
    return ((found - cut.shard(expected, group, dim=2)).abs().max() / expected.abs().max()).item()


def _terms(keys: Tensor, values: Tensor) -> Terms:
    return Terms(keys=OffsetTable(keys, -_DISTANCE), values=OffsetTable(values, -_DISTANCE))


def measure_time(length: int) -> list[dict[str, Any]]:
    """Two ranks beside one process of one and of two threads, as multiples of the former."""
    rows, sizes = [], Sizes(length)
    pool = Pool(2)
    try:
        # Of fewer tokens: the definition builds all pairs.
        apart = {
            name: max(pool.run(_difference, name, Sizes(min(length, PAIRS)))) for name in METHODS
        }
        for backward in (False, True):
            contenders = (ONE_THREAD, TWO_THREADS, *METHODS)
            found: dict[str, list[float]] = {name: [] for name in contenders}
            for round_ in range(ROUNDS + 1):
                for name in contenders:
                    seconds = max(pool.run(_seconds, name, sizes, backward))
                    if round_:  # the first warms up
                        found[name].append(seconds)
            for name in contenders:
                ratios = [x / y for x, y in zip(found[name], found[ONE_THREAD], strict=True)]
                rows.append({
                    "contender": name, "pass": BOTH if backward else FORWARD, "length": length,
                    "seconds": percentiles(found[name]), "ratio": percentiles(ratios),
                    "difference": apart.get(name),
                })  # fmt: skip
                print(f"{rows[-1]['pass']:20} {name:26} {rows[-1]['ratio']['median']:.3f}",
                      flush=True)  # fmt: skip
    finally:
        pool.close()
    return rows


def _bytes(rank: int, size: int, method: str, sizes: Sizes) -> tuple[dict, dict]:
    tensors = _tensors(sizes, _tokens(sizes.length, rank, size))
    with count_bytes() as forward:
        run_once(tensors, method, backward=False)
    with count_bytes() as both:
        run_once(tensors, method, backward=True)
    return forward, both


def measure_bytes(length: int = 4096) -> list[dict[str, Any]]:
    """What each rank sends, counted where it is sent, beside the formulas."""
    rows, sizes = [], Sizes(length)
    for ranks in RANKS:
        # What has imported relpos serves all numbers of ranks.
        pool = Pool(ranks, start="forkserver")
        try:
            for method in methods_of(ranks):
                counts = pool.run(_bytes, method, sizes)
                model = _cost(sizes, ranks, Cluster(1.0, 1.0), method)
                forward = max(sum(x.values()) for x, _ in counts)
                both = max(sum(x.values()) for _, x in counts)
                rows.append({
                    "ranks": ranks, "method": method, "length": length,
                    "forward_bytes": forward, "forward_formula": model.sent[0],
                    "both_bytes": both, "both_formula": sum(model.sent),
                })  # fmt: skip
                print(f"P={ranks} {method:15} {forward} {both} bytes", flush=True)
        finally:
            pool.close()
    return rows


def _growth(rank: int, size: int, method: str | None, sizes: Sizes) -> float:
    """MiB by which the process grows over a forward and a backward pass, tensors included."""
    cut_length = sizes.length if method is None else _tokens(sizes.length, rank, size)
    run_once(tensors_of(sizes, 64 if method is None else 64 // size), method, backward=True)
    before = status_mib("VmRSS")
    run_once(tensors_of(sizes, cut_length), method, backward=True)
    return status_mib("VmHWM") - before


def measure_memory(length: int) -> list[dict[str, Any]]:
    """The peak of each rank, of fresh processes."""
    rows, sizes = [], Sizes(length)
    # glibc gives back at once what is larger than this: what is free does not count.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    for ranks in (1, *RANKS):
        for method in (None,) if ranks == 1 else methods_of(ranks):
            pool = Pool(ranks)
            try:
                grown = pool.run(_growth, method, sizes)
            finally:
                pool.close()
            row = {"ranks": ranks, "method": method or ONE_DEVICE, "length": length,
                   "peak_mib": max(grown)}  # fmt: skip
            row["ratio"] = row["peak_mib"] / (rows[0]["peak_mib"] if rows else row["peak_mib"])
            rows.append(row)
            print(f"P={ranks} {row['method']:15} {row['peak_mib']:.0f} MiB", flush=True)
    return rows


def formula_mib(row: dict[str, Any]) -> float:
    """What the cost model says of a row of `measure_memory`."""
    method = "heads" if row["method"] == ONE_DEVICE else row["method"]
    sizes = Sizes(row["length"])
    return _cost(sizes, row["ranks"], Cluster(1.0, 1.0), method).memory / 2**20


def _cost(sizes: Sizes, ranks: int, cluster: Cluster, method: str) -> Cost:
    return cost(sizes.shape(ranks, method), cluster, ON_A_MESH.get(method, method))


def _timeline(rank: int, size: int, sizes: Sizes) -> list[tuple[str, float, float]]:
    tensors = _tensors(sizes, _tokens(sizes.length, rank, size))
    run_once(tensors, "ring", backward=True)
    distributed.barrier()
    start = time.perf_counter()
    with record_timeline() as events:
        run_once(tensors, "ring", backward=True)
    return [(what, begin - start, end - start) for what, begin, end in events]


def _alone(rank: int, size: int, numbers: int) -> float:
    """Seconds of one hop of so many numbers in float32, while nothing is computed."""
    group = distributed.group.WORLD
    assert group is not None
    ranks = resolve_group("benchmark", group)
    found = []
    for _ in range(7):
        sent, room = torch.zeros(numbers), torch.empty(numbers)
        distributed.barrier()
        start = time.perf_counter()
        Transfer(ranks, {"x": sent}, {"x": room}, steps=1, kind="alone").wait()
        found.append(time.perf_counter() - start)
    return sorted(found)[len(found) // 2]


def measure_timeline(length: int, ranks: int = 2) -> dict[str, Any]:
    """When each rank of a ring computes, and how long it waits for what was sent meanwhile."""
    sizes = Sizes(length)
    pool = Pool(ranks)
    try:
        events = pool.run(_timeline, sizes)
        numbers = 2 * sizes.heads * sizes.width * length // ranks
        alone = max(pool.run(_alone, numbers))
    finally:
        pool.close()
    waited = [
        [end - begin for what, begin, end in of_rank if what.startswith("wait for ring")]
        for of_rank in events
    ]
    result = {"length": length, "ranks": ranks, "hop_alone_seconds": alone,
              "events": events, "waited_seconds": waited}  # fmt: skip
    print(f"a hop alone {1e3 * alone:.1f} ms, waited {waited}", flush=True)
    return result


def measure_plan(length: int) -> dict[str, Any]:
    """The cost model, calibrated by one process and one hop, beside what ranks take."""
    sizes = Sizes(length)
    model_rows = []
    pool = Pool(2)
    try:
        alone = [median(pool.run(_seconds, ONE_THREAD, sizes, both)[0] for _ in range(5))
                 for both in (False, True)]  # fmt: skip
        large, small = 1 << 22, 1 << 10
        times = {n: max(pool.run(_alone, n)) for n in (small, large)}
    finally:
        pool.close()
    one = sizes.shape(1)
    flops = one.flops / alone[0]
    bandwidth = 4 * (large - small) / (times[large] - times[small])
    for ranks in RANKS:
        # More ranks than cores share them.
        share = min(1.0, (os.cpu_count() or 1) / ranks)
        cluster = Cluster(flops * share, bandwidth * share, times[small])
        pool = Pool(ranks)
        try:
            for method in methods_of(ranks):
                taken = {}
                for both in (False, True):
                    pool.run(_seconds, method, sizes, both)
                    taken[both] = median(
                        max(pool.run(_seconds, method, sizes, both)) for _ in range(5)
                    )
                model = _cost(sizes, ranks, cluster, method)
                for name, both, planned in (
                    (FORWARD, False, model.seconds[0]), (BOTH, True, sum(model.seconds))
                ):  # fmt: skip
                    model_rows.append({
                        "ranks": ranks, "method": method, "pass": name, "seconds": taken[both],
                        "planned": planned, "error": planned / taken[both] - 1,
                    })  # fmt: skip
                    print(f"P={ranks} {method:15} {name:20} {taken[both]:.3f} s, planned "
                          f"{planned:.3f}", flush=True)  # fmt: skip
        finally:
            pool.close()
    return {"length": length, "flops": flops, "bandwidth": bandwidth, "latency": times[small],
            "backward": (alone[1] - alone[0]) / alone[0], "rows": model_rows}  # fmt: skip
