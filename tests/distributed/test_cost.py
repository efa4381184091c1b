"""The cost model: its bytes are those that are sent, and its words those of the command."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import relpos.distributed as cut
from benchmarks.measure.distributed import Sizes, measure_bytes
from relpos.distributed.cost import Cluster, Shape, cost, hidden_from
from relpos.distributed.ranks.exchange import count_bytes
from tests.distributed.cut import world
from tests.distributed.test_hybrid import mesh_of

CLUSTER = Cluster(flops=4e14, bandwidth=5e10, latency=1e-5)


@pytest.mark.no_typecheck
def test_what_is_sent_is_what_the_formulas_say(capsys):
    for row in measure_bytes(256):
        for name in ("forward", "both"):
            assert row[f"{name}_bytes"] == row[f"{name}_formula"], row


@pytest.mark.parametrize("method", ["heads", "gather", "ring"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (8, 1), (6, 3), (5, 5)])
def test_formulas_are_of_any_number_of_heads(four, heads: int, kv_heads: int, method: str):
    sent = four.run(_send, heads, kv_heads, method)
    costs = cost(Shape(64, 4, heads, kv_heads, 16, element_bytes=4), CLUSTER, method)
    for direction, formula in enumerate(costs.sent):
        assert sum(of_rank[direction] for of_rank in sent) == pytest.approx(4 * formula)


def _send(
    rank, size, heads, kv_heads, method, layout="zigzag", causal=True, window=None, group=None
) -> tuple[int, int]:
    q = torch.zeros(1, heads, 16, 16).requires_grad_()
    k = torch.zeros(1, kv_heads, 16, 16).requires_grad_()
    with count_bytes() as sent:
        output = cut.attention(
            q, k, k.sin(), group=group or world(), method=method, causal=causal, layout=layout,
            window=window,
        )  # fmt: skip
        forward = sum(sent.values())
        output.sum().backward()
    return forward, sum(sent.values()) - forward


@pytest.mark.parametrize("method", ["gather", "ring"])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 4), (8, 1), (6, 3), (5, 5)])
def test_formulas_of_a_mesh_are_what_is_sent(four, heads: int, kv_heads: int, window, method: str):
    options = {"method": method, "layout": "contiguous", "window": window and (window, 0)}
    sent = four.run(_send_in_a_mesh, heads, kv_heads, options)
    shape = Shape(64, 4, heads, kv_heads, 16, element_bytes=4, window=window, inner=2)
    costs = cost(shape, CLUSTER, method)
    for direction, formula in enumerate(costs.sent):
        assert sum(of_rank[direction] for of_rank in sent) == pytest.approx(4 * formula)


def _send_in_a_mesh(rank, size, heads, kv_heads, options) -> tuple[int, int]:
    return _send(rank, size, heads, kv_heads, **options, group=mesh_of((2, 2)))


def test_a_mesh_with_one_inner_rank_costs_what_a_ring_does():
    shape = Shape(1_000_000, 64, 16)
    near = Cluster(flops=4e14, bandwidth=5e10, latency=1e-5, inner_bandwidth=4e11)
    assert cost(replace(shape, inner=1), near, "ring") == cost(shape, CLUSTER, "ring")
    # Of 8 inner ranks keys go to 7 others, with an eighth of the heads, and not to 63.
    mesh = replace(shape, inner=8)
    found, ring = cost(mesh, near, "ring"), cost(shape, near, "ring")
    exchanged = 7 / 8 * 4 * 15_625 * 16 * 128 * 2
    assert found.sent[0] == pytest.approx(ring.sent[0] * 7 / 63 + exchanged)
    assert found.seconds < ring.seconds
    assert found.seconds[0] < cost(mesh, CLUSTER, "ring").seconds[0]
    assert hidden_from(mesh, near) == hidden_from(shape, near) / 8
    # Three inner ranks get 6, 5 and 5 heads: the first is the slowest.
    uneven = cost(replace(shape, ranks=63, inner=3), CLUSTER, "ring")
    assert uneven.computing[0] == pytest.approx(6 / 16 * Shape(10**6, 21, 16).flops / 4e14)


@pytest.mark.parametrize("method", ["ring", "auto"])
@pytest.mark.parametrize(
    ("layout", "window", "visits"),
    [
        # 16 tokens on each rank, in one run or two, whose neighbours lie on the ranks beside.
        ("contiguous", (16, 0), 1), ("contiguous", (17, 0), 2), ("contiguous", (0, 16), 1),
        ("contiguous", (16, 16), 2), ("contiguous", (18, 18), 3), ("zigzag", (8, 0), 2),
        ("zigzag", (8, 8), 2), ("zigzag", (20, 0), 3),
    ],
)  # fmt: skip
def test_keys_on_a_ring_go_no_further_than_a_window(
    four, layout: str, window, visits: int, method: str
):
    for sent in four.run(_send_under_a_window, layout, window, 2, method):
        assert sent == visits * 2 * 2 * 16 * 8 * 4


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 63, 64, 100])
def test_formulas_of_windows_are_what_is_sent_and_computed(four, window: int, causal: bool):
    shape = Shape(64, 4, 8, head_dim=16, element_bytes=4, causal=causal, window=window)
    found = cost(shape, CLUSTER, "ring")
    for sent in four.run(_send, 8, 8, "ring", "contiguous", causal, (window, window)):
        assert sent == found.sent
    offset = torch.arange(64) - torch.arange(64)[:, None]
    seen = (offset.abs() <= window) & ((offset <= 0) | (not causal))
    # A pair of a token with itself counts half if causal.
    pairs = seen.sum().item() - (32 if causal else 0)
    assert shape.flops == pytest.approx(4 * 8 * 16 * pairs / 4, rel=5e-3)
    everything = cost(Shape(64, 4, 8, head_dim=16, element_bytes=4, causal=causal), CLUSTER, "ring")
    assert found.sent[0] <= everything.sent[0]
    assert found.seconds <= everything.seconds


@pytest.mark.parametrize(
    ("window", "heads", "bytes_sent"),
    [
        ((5, 0), 4, 2 * 4 * 16 * 8 * 4),  # to the neighbour alone
        ((20, 0), 4, 4 * 4 * 16 * 8 * 4 * 3 // 4),  # by heads: less than two hops
        ((5, 5), 4, 4 * 4 * 16 * 8 * 4 * 3 // 4),  # to both neighbours it would be more
    ],
)
def test_the_method_is_what_sends_least_under_a_window(four, window, heads: int, bytes_sent: int):
    for sent in four.run(_send_under_a_window, "contiguous", window, heads, "auto"):
        assert sent == bytes_sent


def _send_under_a_window(rank, size, layout, window, heads, method) -> int:
    x = torch.zeros(1, heads, 16, 8)
    options = {"method": method, "layout": layout, "window": window}
    with count_bytes() as sent:
        cut.attention(x, x, x, group=world(), **options)
    return sum(sent.values())


def test_one_rank_sends_nothing_and_every_method_is_the_same():
    for method in ("heads", "gather", "ring"):
        found = cost(Shape(4096, 1, 8), CLUSTER, method)
        assert found.sent == (0, 0)
        assert found.hidden
        assert found.seconds == found.computing


def test_a_ring_hides_its_hops_from_the_length_that_is_said():
    shape = Shape(1, 1, heads=16, kv_heads=4)
    cluster = Cluster(4e14, 5e10)
    tokens = hidden_from(shape, cluster)
    for factor, hidden in ((0.99, False), (1.01, True)):
        length = int(factor * tokens * 64)
        assert cost(Shape(length, 64, 16, 4), cluster, "ring").hidden is hidden


def test_causal_work_is_half_and_memory_falls_with_the_ranks():
    whole, half = (cost(Shape(8192, 4, 8, causal=c), CLUSTER, "ring") for c in (False, True))
    assert half.computing[0] == whole.computing[0] / 2
    for method in ("heads", "ring"):
        eight, sixteen = (cost(Shape(1 << 20, p, 16), CLUSTER, method).memory for p in (8, 16))
        assert sixteen == pytest.approx(eight / 2)
    assert (
        cost(Shape(8192, 16, 8), CLUSTER, "heads").impossible == "8 heads are fewer than the ranks"
    )


@pytest.mark.no_typecheck
def test_wrong_numbers_are_named():
    with pytest.raises(ValueError, match="Shape: length must be an integer >= 1, got 0"):
        Shape(0, 2, 8)
    with pytest.raises(ValueError, match="Shape: kv_heads must divide 8 heads, got 3"):
        Shape(8, 2, 8, 3)
    with pytest.raises(ValueError, match=r"Cluster: bandwidth must be in 1\.\.1e\+30, got 0"):
        Cluster(1.0, 0.0)
    with pytest.raises(ValueError, match="cost: method must be one of heads, gather, ring"):
        cost(Shape(8, 2, 8), CLUSTER, "alltoall")  # type: ignore[arg-type]


def test_sizes_of_the_benchmark_are_those_of_the_model():
    assert Sizes(64).shape(2) == Shape(64, 2, 8, head_dim=64, element_bytes=4)
