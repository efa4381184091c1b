"""Backward from stored `dS`, in the interpreter or on a GPU: cut into chunks of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from relpos import OffsetTable, Terms, attention, backends
from tests.ops.agreement import assert_agrees, assert_within_budget, cast
from tests.ops.cases import CASES, Case

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("quick_interpreter"),
]

FLOAT = torch.float32
LONGEST = 45  # some tiles of the interpreter's 32 x 16 either way
SHEARED = sorted(
    name for name, case in CASES.items() if set(case.terms.split()) & {"keys", "queries", "values"}
)
SLOW = {"several row blocks", "several row blocks, causal", "ranges, several row blocks"}
# Numbers of a chunk: all pairs, some heads, one tile of queries.
SIZES = (1 << 30, 12_000, 1)


@pytest.fixture
def stored(monkeypatch) -> Any:
    """Stores whatever the table, in chunks of so many numbers that hold NaN until written."""
    from relpos.ops.triton import backward, stored_scores

    calls, gradients, rows = [], stored_scores.stored_gradients, stored_scores._Run._rows

    def with_nan(run: Any) -> Tensor:
        found = rows(run)
        found[:, :, : run.plan.keys] = torch.nan
        return found

    def counted(*call: Any) -> dict[str, Tensor]:
        calls.append(call)
        return gradients(*call)

    def in_chunks(size: int) -> list[Any]:
        monkeypatch.setattr(stored_scores, "NARROW", 0)
        monkeypatch.setattr(stored_scores, "_MOST_ELEMENTS", size)
        monkeypatch.setattr(stored_scores._Run, "_rows", with_nan)
        monkeypatch.setattr(backward, "stored_gradients", counted)
        return calls

    return in_chunks


def assert_equals_the_reference(case: Case) -> None:
    named = case.inputs(dtype=FLOAT)
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] if x in SLOW else []) for x in SHEARED],
)
def test_every_term_equals_the_reference(name: str, stored):
    calls = stored(SIZES[SHEARED.index(name) % len(SIZES)])
    share = max(1, CASES[name].queries / LONGEST, CASES[name].keys / LONGEST)
    tokens = (max(1, int(x / share)) for x in (CASES[name].queries, CASES[name].keys))
    case = replace(CASES[name], batch=1, **dict(zip(("queries", "keys"), tokens, strict=True)))
    assert_equals_the_reference(case)
    assert calls


ALL_TERMS = Case(
    batch=3, heads=4, groups=2, queries=40, keys=45, terms="keys queries bias values",
    table_window=(20, 15),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (SIZES[0], {}),
        (30_000, {"table_heads": 4}),
        (SIZES[1], {"table_heads": 4, "documents": "runs", "causal": True}),
        (SIZES[2], {"table_heads": 4}),
        (SIZES[2], {"terms": "keys values", "window": (12, None), "ranges": "any"}),
    ],
    ids=str,
)
def test_chunks_of_any_size_give_the_same(size: int, settings: dict, stored):
    """Also where the heads of a chunk are of several sequences, and of several tables."""
    calls = stored(size)
    assert_equals_the_reference(replace(ALL_TERMS, **settings))
    assert calls


def test_the_bits_do_not_depend_on_the_run(stored):
    stored(SIZES[1])
    case = replace(ALL_TERMS, batch=2, heads=2, groups=1, causal=True)
    named = case.inputs(dtype=FLOAT)
    first, second = (case.results(named, "triton") for _ in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all offsets, causal", "q_rel"])
def test_half_precision_is_within_budget(name: str, stored):
    """The suite's own budget, from fewer draws (`test_precision.py`)."""
    calls, draws = stored(SIZES[1]), {"triton": [], "reference": [], "exact": []}
    case = replace(CASES[name], batch=1)
    for seed in range(3):
        named = cast(case.inputs(seed), torch.float16)
        for judge, found in draws.items():
            inputs = cast(named, torch.float64) if judge == "exact" else named
            found.append(case.results(inputs, "reference" if judge == "exact" else judge))
    for part in draws["triton"][0]:
        assert_within_budget(*(torch.stack([one[part] for one in x]) for x in draws.values()))
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n"), [(64, 64), (64, 32), (32, 32), (128, 64)])
def test_tiles_of_a_gpu_give_the_same(m: int, n: int, stored, monkeypatch):
    from relpos.ops.triton import launch
    from relpos.ops.triton.tuning import TileShape

    calls = stored(30_000)
    monkeypatch.setattr(launch, "tile_shapes", lambda *_: [TileShape(m, n, 4, 1)])
    settings = {"causal": True} if m == n else {"window": (50, 20)}
    case = replace(ALL_TERMS, batch=2, heads=2, groups=1, queries=150, keys=140, table_heads=2)
    assert_equals_the_reference(replace(case, **settings))
    assert calls


def gradients(
    length: int, rows: int, backend: str, *, freeze: str = "", bias: bool = False
) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    leaves = {name: torch.randn(1, 1, length, 4, generator=draw) for name in "qkv"}
    width = () if bias else (4,)
    leaves["table"] = torch.randn(1, rows, *width, generator=draw)
    for name, x in leaves.items():
        x.requires_grad_(name != freeze)
    table = OffsetTable(leaves["table"], 1 - rows)
    terms = Terms(bias=table) if bias else Terms(keys=table)
    attention(*(leaves[x] for x in "qkv"), terms, causal=True, backend=backend).sum().backward()
    return {name: x.grad for name, x in leaves.items() if x.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "settings", "stores"),
    [
        (600, {}, True),
        (500, {}, False),
        (600, {"bias": True}, False),
        (600, {"freeze": "v"}, False),
        (600, {"freeze": "table"}, False),
    ],
    ids=str,
)
def test_what_is_stored(rows: int, settings: dict, stores: bool, monkeypatch):
    """Where a table that is sheared is wide and all is learnt; its length is the window's."""
    from relpos.ops.triton import launch

    ran, run_programs = set(), launch.run_programs

    def noted(kernel: Any, *arguments: Any, **options: Any) -> None:
        ran.add(kernel.fn.__name__)
        run_programs(kernel, *arguments, **options)

    monkeypatch.setattr(launch, "run_programs", noted)
    found = gradients(530, rows, "triton", **settings)
    assert ("stored_dq_kernel" in ran) == stores
    assert ("dq_kernel" in ran) != stores
    assert_agrees(found, gradients(530, rows, "reference", **settings))


class Sizes:
    """What a plan reads of a call."""

    def __init__(self, batch: int, kv_heads: int, group: int, queries: int, keys: int) -> None:
        self.batch, self.kv_heads, self.heads = batch, kv_heads, kv_heads * group
        self.seqlen_q, self.seqlen_k = queries, keys
        self.q = torch.empty(batch, self.heads, queries, 64, dtype=torch.bfloat16, device="meta")
        self.k = torch.empty(batch, kv_heads, keys, 64, dtype=torch.bfloat16, device="meta")
        self.v = self.k


@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 1 << 16),
    st.integers(1, 1 << 16), st.sampled_from([(64, 64), (128, 64), (32, 16)]),
)  # fmt: skip
def test_every_pair_is_in_one_chunk_and_memory_grows_as_the_tokens_do(
    batch: int, kv_heads: int, group: int, queries: int, keys: int, tile: tuple[int, int]
):
    from relpos.ops.triton.stored_scores import LEAST_BYTES, _Plan
    from relpos.ops.triton.tuning import TileShape

    call, shape = Sizes(batch, kv_heads, group, queries, keys), TileShape(*tile, 4, 1)
    plan = _Plan.of(call, shape)
    chunks = list(plan.chunks(call))
    assert sum(x.kv_heads * (min(x.i_end, queries) - x.i_begin) for x in chunks) == (
        batch * kv_heads * queries
    )
    assert {(x.first_kv_head, x.i_begin) for x in chunks[1:]} >= {
        (x.first_kv_head + x.kv_heads, 0) for x in chunks if x.i_end >= queries
    } - {(batch * kv_heads, 0)}
    assert all(x.i_begin % shape.m == x.i_end % shape.m == 0 for x in chunks)
    numbers = plan.kv_heads * group * plan.queries * (plan.keys + plan.margin)
    tensors = sum(2 * x.numel() for x in (call.q, call.k, call.v))
    tile_of_queries = 2 * group * shape.m * (plan.keys + plan.margin)
    assert 2 * numbers <= max(tensors, LEAST_BYTES, tile_of_queries)
