"""Rotary and Shaw positions of local attention: each pair of tokens by itself, from the papers.

The loop below knows nothing of relpos. Which pairs take part is said in words of each kind of local
attention, not by its window or its ranges; autograd gives the gradients of what it adds up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import relpos
from relpos.positions import Rotary, Shaw
from tests.factories import qkv
from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, every_backend

WIDTH, LEFT, RIGHT = 6, 3, 2


@dataclass(frozen=True)
class Local:
    """A kind of local attention.

    Args:
        sees: whether the query at position p sees key j, in text b.
        arguments: the same for `attention`, without ranges.
        ranges: the same for queries at all positions, where it is said by ranges.
    """

    sees: Callable[[int, int, int], bool]
    arguments: dict = field(default_factory=dict)
    ranges: Callable[[int], Tensor] | None = None


def in_chunks(size: int, left: int, right: int = 0) -> Callable[[int, int, int], bool]:
    """Whether a key's chunk is the query's, or at most so many before or after it."""
    return lambda b, p, j: -left <= j // size - p // size <= right


WINDOW = Local(lambda b, p, j: p - 5 <= j <= p + 2, {"window": (5, 2)})
CHUNKS = Local(in_chunks(4, 1), ranges=lambda length: relpos.chunk_ranges(length, 4, 1))
LENGTHS = torch.tensor([23, 15])
KINDS = {
    "window": WINDOW,
    "window of what came": Local(lambda b, p, j: p - 4 <= j <= p, {"window": (4, 0)}),
    "window, causal": Local(lambda b, p, j: p - 6 <= j <= p, {"window": (6, None), "causal": True}),
    "window of what comes": Local(lambda b, p, j: j >= p, {"window": (0, None)}),
    "chunks": CHUNKS,
    "chunks ahead": Local(
        in_chunks(3, 0, 2), ranges=lambda length: relpos.chunk_ranges(length, 3, 0, 2)
    ),
    "prefix": Local(
        lambda b, p, j: j < (9, 2)[b] or j <= p,
        ranges=lambda length: relpos.prefix_ranges(torch.tensor([9, 2]), length),
    ),
    "padding in a window": Local(
        lambda b, p, j: WINDOW.sees(b, p, j) and j < LENGTHS[b],
        WINDOW.arguments,
        lambda length: relpos.padding_ranges(LENGTHS, length),
    ),
    "chunks in a window, capped": Local(
        lambda b, p, j: WINDOW.sees(b, p, j) and CHUNKS.sees(b, p, j),
        {**WINDOW.arguments, "softcap": 0.7},
        CHUNKS.ranges,
    ),
}


@cache
def rotation(p: int) -> Tensor:
    """`R_p` of base 50, Su et al. 2021, eq. 15."""
    matrix = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for c in range(WIDTH // 2):
        angle = torch.tensor(p * 50.0 ** (-2 * c / WIDTH), dtype=torch.float64)
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
        matrix[2 * c : 2 * c + 2, 2 * c : 2 * c + 2] = turn
    return matrix


def rotary_pair(q: Tensor, k: Tensor, v: Tensor, p: int, j: int, **tables: Tensor):
    """Score and value of one pair: Su et al. 2021, eq. 16, divided by the root of the width."""
    return (rotation(p) @ q) @ (rotation(j) @ k) / sqrt(WIDTH), v


def shaw_pair(q: Tensor, k: Tensor, v: Tensor, p: int, j: int, keys: Tensor, values: Tensor):
    """Score and value of one pair: Shaw et al. 2018, eq. 3 and 4."""
    row = min(max(j - p, -LEFT), RIGHT) + LEFT
    return q @ (k + keys[0, row]) / sqrt(WIDTH), v + values[0, row]


POSITIONS = {
    "rotary": (lambda: Rotary(WIDTH, 50.0, interleaved=True), rotary_pair),
    "shaw": (lambda: Shaw(WIDTH, (LEFT, RIGHT)), shaw_pair),
}


def double_loop(
    q: Tensor, k: Tensor, v: Tensor, pair: Callable, sees: Callable, start: int,
    softcap: float | None, tables: dict[str, Tensor],
) -> Tensor:  # fmt: skip
    """`softmax_j(score) value`, query by query and key by key; zeros where nothing is seen."""
    output = torch.zeros_like(q)
    for b, h, i in np.ndindex(*q.shape[:3]):
        scores, values = [], []
        for j in range(k.shape[2]):
            if sees(b, start + i, j):
                score, value = pair(q[b, h, i], k[b, h, j], v[b, h, j], start + i, j, **tables)
                scores.append(score if softcap is None else softcap * (score / softcap).tanh())
                values.append(value)
        if scores:
            output[b, h, i] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return output


def leaves_of(position: nn.Module, queries: int, keys: int, dtype: torch.dtype) -> dict:
    """Inputs and the scheme's tables, which are not zero."""
    named = dict(zip("qkv", qkv(queries, keys, d=WIDTH), strict=True))
    draw = torch.Generator().manual_seed(5)
    for name, rows in position.named_parameters():
        named[name] = torch.randn(rows.shape, generator=draw, dtype=torch.float64)
    return {name: x.to(dtype).requires_grad_() for name, x in named.items()}


def tables_of(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that are parameters of the scheme."""
    return {name: rows for name, rows in leaves.items() if name not in "qkv"}


def with_gradients(output: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output, and the gradient of each leaf under fixed weights."""
    draw = torch.Generator().manual_seed(6)
    weights = torch.randn(output.shape, generator=draw, dtype=torch.float64).to(output.dtype)
    gradients = torch.autograd.grad(output, list(leaves.values()), weights)
    return {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}


# The queries are all, the last ones, the first ones, or some between; and more than a tile has.
SHORT = ((23, 23, None), (7, 23, None), (9, 23, 0), (8, 23, 6))
CASES = [(kind, *size) for kind in KINDS for size in SHORT]
CASES += [(kind, 75, 300, 170) for kind in ("window", "chunks", "chunks in a window, capped")]


@every_backend
@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize(("kind", "queries", "keys", "query_start"), CASES)
@pytest.mark.costly(50)
def test_local_attention_equals_the_double_loop(
    name: str, kind: str, queries: int, keys: int, query_start: int | None, backend: str
):
    make, pair = POSITIONS[name]
    local, position = KINDS[kind], make().to(DTYPES[backend])
    leaves = leaves_of(position, queries, keys, DTYPES[backend])
    start = keys - queries if query_start is None else query_start
    arguments = dict(local.arguments)
    if local.ranges is not None:
        arguments["key_ranges"] = local.ranges(keys)[:, start : start + queries]
    at = {"query_start": query_start} if position.reads_query_start else {}
    q, k, terms = functional_call(position, tables_of(leaves), (leaves["q"], leaves["k"]), at)
    ours = relpos.attention(
        q, k, leaves["v"], terms, query_start=query_start, backend=backend, **arguments
    )
    exact = {key: x.detach().double().requires_grad_() for key, x in leaves.items()}
    want = double_loop(
        exact["q"], exact["k"], exact["v"], pair, local.sees, start, arguments.get("softcap"),
        tables_of(exact),
    )  # fmt: skip
    assert_agrees(with_gradients(ours, leaves), with_gradients(want, exact))


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("window", [(4, 2), (6, 2), (5, 1), (5, 3)])
def test_one_token_more_or_less_is_not_the_double_loop(name: str, window: tuple[int, int]):
    make, pair = POSITIONS[name]
    position = make().double()
    leaves = leaves_of(position, 23, 23, torch.float64)
    tables = tables_of(leaves)
    q, k, terms = functional_call(position, tables, (leaves["q"], leaves["k"]))
    ours = relpos.attention(q, k, leaves["v"], terms, window=window)
    inputs = leaves["q"], leaves["k"], leaves["v"]
    want = double_loop(*inputs, pair, WINDOW.sees, 0, None, tables)
    assert (ours - want).abs().max() > 0.1
