"""What each method sends, keeps and takes: numbers to plan with, before there are devices.

With `n = L / P` tokens on each of P ranks, h query and g key heads of width d, e bytes a number, F
FLOP/s of a rank in attention, W bytes/s of a rank to the next, and a latency of a seconds:

    c = 4 b h d n^2 / F  (half of it if causal)      the pairs of two ranks' tokens, forward
    v = 2 b g n d e                                  keys and values of a rank

    forward    sends                               takes
    ring       (P - 1) v                           c + (P - 1) max(c, a + v / W)
    gather     (P - 1) v                           P c + (P - 1) (a + v / W)
    heads      (P - 1) / P b n d (2h + 2g') e      P c' + 4 (P - 1) a + the same / W

By heads a rank gets the key heads that its query heads read: `g'` is their sum over the ranks, g
where P divides it. Where P does not divide h, `c'` is what the rank with most heads computes.

Backward computes 2.5 times as much. Ring and gather send keys and values once more, and their
gradients in w >= 4 bytes (ring P times, gather P - 1); heads send what they did forward. Under a
causal mask the zigzag layout makes the work of a hop the same on every rank. Terms are left out:
their tables do not travel, and each rank has them whole.

On a mesh of two dimensions, of H inner ranks, those exchange tokens for heads as H ranks by heads
do, at a bandwidth of their own, and a ring or gathering is one of P / H ranks of H n tokens, each
with the heads that one of the inner ranks gets.

Under a window of m tokens, in the contiguous layout, fewer pairs take part, and on a ring keys
visit ceil(m / n) ranks in place of P - 1, twice as many if tokens after the query are seen too. Of
the work there a rank's own keys have their share, and those that come in equal ones of the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ..checks import check_count, check_number
from .methods.choice import METHODS
from .methods.head_cut import HeadCut

__all__ = ["PLAN_ERROR", "Cluster", "Cost", "Shape", "cost", "hidden_from"]

# How far off times and memory of two and four processes were at most (`benchmarks/distributed.py`).
PLAN_ERROR = 0.4

_MOST_HEADS = 1 << 16

# Backward computes the scores again, and four products more.
_BACKWARD = 2.5


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention over a sequence that is cut among ranks.

    Args:
        length: L, in tokens.
        ranks: P.
        heads: h, query heads.
        kv_heads: g, key and value heads; None: h.
        head_dim: d.
        batch: b.
        element_bytes: e, of a number.
        causal: whether keys ahead of the query are left out.
        window: m, how many tokens before the query it sees, and without `causal` as many after it;
            None: all.
        inner: H, the ranks along the last dimension of a mesh of two, which exchange tokens for
            heads; 1: the mesh has one dimension.

    Raises:
        ValueError: if a number is out of range, the key heads do not divide the query heads, or the
            inner ranks the ranks, or are more than the heads.
    """

    length: int
    ranks: int
    heads: int
    kv_heads: int | None = None
    head_dim: int = 128
    batch: int = 1
    element_bytes: int = 2
    causal: bool = True
    window: int | None = None
    inner: int = 1

    def __post_init__(self) -> None:
        for name in ("length", "ranks", "heads", "head_dim", "batch", "element_bytes", "inner"):
            check_count("Shape", name, getattr(self, name))
        if self.window is not None:
            check_count("Shape", "window", self.window)
        if self.heads > _MOST_HEADS:
            raise ValueError(f"Shape: heads must be at most {_MOST_HEADS}, got {self.heads}")
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.heads % check_count("Shape", "kv_heads", self.kv_heads):
            raise ValueError(f"Shape: kv_heads must divide {self.heads} heads, got {self.kv_heads}")
        if self.ranks % self.inner:
            raise ValueError(f"Shape: inner must divide {self.ranks} ranks, got {self.inner}")
        if self.inner > self.heads:
            raise ValueError(f"Shape: inner must be at most {self.heads} heads, got {self.inner}")

    @property
    def tokens(self) -> float:
        """n, on each rank."""
        return self.length / self.ranks

    @property
    def key_numbers(self) -> float:
        """Numbers in the keys and values of a rank."""
        assert self.kv_heads is not None
        return 2 * self.batch * self.kv_heads * self.tokens * self.head_dim

    @property
    def query_numbers(self) -> float:
        """Numbers in the queries of a rank, and in its output."""
        return self.batch * self.heads * self.tokens * self.head_dim

    @property
    def visits(self) -> int:
        """How many ranks the keys of each visit on a ring, besides its own."""
        others = self.ranks - 1
        if self.window is None or self.window >= self.length:
            return others
        one_way = -(-self.window * self.ranks // self.length)
        return min(others, one_way if self.causal else 2 * one_way)

    @property
    def flops(self) -> float:
        """The operations of a rank, forward, on average over the ranks."""
        return self._flops(self._pairs(float(self.length)) / self.ranks)

    @property
    def own_flops(self) -> float:
        """Those of them with the rank's own keys."""
        if self.window is None:  # in the zigzag layout as many as with any others
            return self.flops / self.ranks
        return self._flops(self._pairs(self.tokens))

    def _flops(self, pairs: float) -> float:
        return 4 * self.batch * self.heads * self.head_dim * pairs

    def _pairs(self, tokens: float) -> float:
        """How many pairs of tokens in a row take part; if causal one with itself is half."""
        reach = tokens if self.window is None else min(self.window + 0.5, tokens)
        return (tokens - reach / 2) * reach * (1 if self.causal else 2)


@dataclass(frozen=True)
class Cluster:
    """What ranks can do.

    Args:
        flops: F, FLOP/s of a rank in attention, not at its peak.
        bandwidth: W, bytes/s from a rank to the next.
        latency: a, seconds until the first byte arrives.
        inner_bandwidth: bytes/s of an inner rank to the others; None: as between all ranks.

    Raises:
        ValueError: if a number is out of range: 1 to 1e30, of the latency 0 to 1e6.
    """

    flops: float
    bandwidth: float
    latency: float = 0.0
    inner_bandwidth: float | None = None

    def __post_init__(self) -> None:
        if self.inner_bandwidth is None:
            object.__setattr__(self, "inner_bandwidth", self.bandwidth)
        for name in ("flops", "bandwidth", "latency", "inner_bandwidth"):
            number = check_number("Cluster", name, getattr(self, name))
            least, most = (0, 1e6) if name == "latency" else (1, 1e30)
            if not least <= number <= most:
                raise ValueError(f"Cluster: {name} must be in {least}..{most:g}, got {number:g}")


@dataclass(frozen=True)
class Cost:
    """What a method costs each rank, forward and then backward.

    Args:
        method: its name.
        impossible: why it is not possible, or None.
        sent: bytes, forward and backward.
        seconds: forward and backward.
        computing: seconds of them that are spent computing.
        hidden: whether what is sent takes no longer than what is computed meanwhile.
        memory: bytes of tensors in backward: inputs, output, gradients and buffers.
    """

    method: str
    impossible: str | None
    sent: tuple[float, float]
    seconds: tuple[float, float]
    computing: tuple[float, float]
    hidden: bool
    memory: float


def hidden_from(shape: Shape, cluster: Cluster) -> float:
    """From how many tokens a rank on a ring hides what it sends behind what it computes.

    `n >= (g / h) e F / W` forward under a causal mask, half of it without; backward has gradients
    to send too, and more to compute. On a mesh the H inner ranks have so many tokens together.

    Args:
        shape: of the attention, whose length and ranks do not matter.
        cluster: on which it runs, whose latency is left out.

    >>> round(hidden_from(Shape(1, 1, heads=16, element_bytes=2), Cluster(4e14, 5e10)))
    19200
    """
    if shape.inner > 1:
        return max(hidden_from(each, cluster) for each in _outer_shapes(shape)) / shape.inner
    assert shape.kv_heads is not None
    e, w = shape.element_bytes, max(shape.element_bytes, 4)
    computed = (2 if shape.causal else 4) * shape.heads / cluster.flops
    sent = 2 * shape.kv_heads / cluster.bandwidth
    return max(sent * e / computed, sent * (e + w) / (_BACKWARD * computed))


def cost(shape: Shape, cluster: Cluster, method: str) -> Cost:
    """What a method costs.

    Args:
        shape: of the attention.
        cluster: on which it runs.
        method: `"heads"`, `"gather"` or `"ring"`.

    Raises:
        ValueError: if there is no such method.

    >>> shape = Shape(length=1_000_000, ranks=64, heads=16)
    >>> found = cost(shape, Cluster(flops=4e14, bandwidth=5e10), "ring")
    >>> found.hidden, round(found.seconds[0], 3)
    (False, 0.164)
    """
    if method not in METHODS:
        raise ValueError(f"cost: method must be one of {', '.join(METHODS)}, got {method!r}")
    if shape.inner > 1 and method != "heads":
        return _hybrid_cost(shape, cluster, method)
    ranks, e, w = shape.ranks, shape.element_bytes, max(shape.element_bytes, 4)
    keys, queries = shape.key_numbers, shape.query_numbers
    compute = shape.flops / cluster.flops, _BACKWARD * shape.flops / cluster.flops
    own = (2 * queries + keys) * e * 2  # q, output, k, v and their gradients
    others = ranks - 1
    # In the zigzag layout a rank's keys are two runs, of one of which gradients are made at a time.
    runs = 2 if shape.causal else 1
    impossible = None
    if method == "heads":
        assert shape.kv_heads is not None
        if shape.heads < ranks:
            impossible = f"{shape.heads} heads are fewer than the ranks"
        cut = HeadCut.of(shape.heads, shape.kv_heads, min(ranks, shape.heads))
        # As parts of what would be even.
        uneven_keys = max(map(len, cut.keys)) * ranks / shape.kv_heads
        uneven = max(map(len, cut.queries)) * ranks / shape.heads
        compute = compute[0] * uneven, compute[1] * uneven
        share = _exchanged(shape, cut)
        sent = share, share
        # On a mesh that to the inner ranks goes at their bandwidth.
        near = (shape.inner - 1) / max(others, 1)
        assert cluster.inner_bandwidth is not None
        pace = near / cluster.inner_bandwidth + (1 - near) / cluster.bandwidth
        wait = 4 * others * cluster.latency + share * pace
        seconds = compute[0] + wait, compute[1] + wait
        hidden = share == 0
        # By heads once more: what backward needs of the forward pass, and the output's gradient.
        memory = own + ((3 * queries * uneven + keys * uneven_keys) * e if others else 0.0)
    elif method == "gather":
        gathered = others * keys
        sent = gathered * e, gathered * (e + w)
        waits = [others * cluster.latency + x / cluster.bandwidth for x in sent]
        seconds = compute[0] + waits[0], compute[1] + waits[1]
        hidden = gathered == 0
        memory = own + ranks * keys * (e + 2 * w) + queries * w
    else:
        visits = shape.visits
        sent = visits * keys * e, visits * keys * e + ((visits + 1) * keys * w if visits else 0.0)
        hop = cluster.latency + keys * e / cluster.bandwidth
        back = cluster.latency + keys * (e + w) / cluster.bandwidth
        forward, hidden = _ring_seconds(shape, cluster, hop, 1.0)
        backward, hidden_backward = _ring_seconds(shape, cluster, back, _BACKWARD)
        seconds = forward, backward + (back if visits else 0.0)
        hidden = hidden and hidden_backward
        # Keys of two other ranks, and sums of gradients on their way out and in.
        travelling = keys * (min(visits, 2) * e + 2 * w) if visits else keys * w
        memory = own + queries * w + travelling + keys * w / runs
    return Cost(method, impossible, sent, seconds, compute, hidden, memory)


def _exchanged(shape: Shape, cut: HeadCut) -> float:
    """The bytes that each of some ranks sends in exchange for heads, on average."""
    assert shape.kv_heads is not None
    size = len(cut.queries)
    all_keys = sum(map(len, cut.keys)) / shape.kv_heads
    numbers = 2 * shape.query_numbers + shape.key_numbers * all_keys
    return (size - 1) / size * numbers * shape.element_bytes


def _hybrid_cost(shape: Shape, cluster: Cluster, method: str) -> Cost:
    """What a method costs among the outer ranks of a mesh, where the inner ones exchange heads."""
    assert cluster.inner_bandwidth is not None
    shapes = _outer_shapes(shape)
    outer = {each: cost(each, cluster, method) for each in shapes}
    share = _exchanged(shape, _inner_cut(shape))
    wait = 4 * (shape.inner - 1) * cluster.latency + share / cluster.inner_bandwidth
    slowest = max(outer.values(), key=lambda one: sum(one.seconds))
    sent = [
        sum(count * outer[each].sent[direction] for each, count in shapes.items()) / shape.inner
        for direction in (0, 1)
    ]
    forward, backward = slowest.seconds
    # By all heads the queries, keys, values, output and its gradient.
    memory = (3 * shape.query_numbers + shape.key_numbers) * shape.element_bytes
    return Cost(
        method, None, (sent[0] + share, sent[1] + share), (forward + wait, backward + wait),
        slowest.computing, False, memory + max(one.memory for one in outer.values()),
    )  # fmt: skip


def _inner_cut(shape: Shape) -> HeadCut:
    """The heads that each inner rank gets."""
    assert shape.kv_heads is not None
    return HeadCut.of(shape.heads, shape.kv_heads, shape.inner)


def _outer_shapes(shape: Shape) -> dict[Shape, int]:
    """What the outer ranks attend to, and how many of the inner ranks have heads so."""
    cut, ranks = _inner_cut(shape), shape.ranks // shape.inner
    heads = Counter(zip(map(len, cut.queries), map(len, cut.keys), strict=True))
    return {
        replace(shape, ranks=ranks, heads=of_queries, kv_heads=of_keys, inner=1): count
        for (of_queries, of_keys), count in heads.items()
    }


def _ring_seconds(shape: Shape, cluster: Cluster, hop: float, work: float) -> tuple[float, bool]:
    """The seconds of a pass on a ring, and whether all that is sent is hidden.

    Args:
        shape: of the attention.
        cluster: on which it runs.
        hop: seconds until the keys of the next rank are there.
        work: as parts of what is computed forward.
    """
    visits, own = shape.visits, work * shape.own_flops / cluster.flops
    if not visits:
        return work * shape.flops / cluster.flops, True
    step = (work * shape.flops / cluster.flops - own) / visits
    meanwhile = own if visits == 1 else min(own, step)
    return max(own, hop) + (visits - 1) * max(step, hop) + step, hop <= meanwhile
