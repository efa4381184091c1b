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
from relpos.ops.bounded_cache import BoundedCache
from tests.ops.agreement import assert_agrees, assert_within_budget, cast
from tests.ops.cases import CASES, Case

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("quick_interpreter"),
]

FLOAT = torch.float32
LONGEST = 45  # some tiles of the interpreter's 32 x 16 either way
# Without what is not stored: a bias that learns, documents, ranges.
SHEARED = {
    name: replace(case, terms=" ".join(x for x in case.terms.split() if x != "bias"))
    for name, case in CASES.items()
    if set(case.terms.split()) - {"bias"} and not (case.documents or case.ranges or case.hide_far)
}
SLOW = {"several row blocks", "several row blocks, causal"}
# Numbers of a chunk: all pairs, some heads, one tile of queries.
SIZES = (1 << 30, 40_000, 1)


@pytest.fixture
def stored(monkeypatch) -> Any:
    """Stores whatever the table, in chunks of so many numbers; a list of the calls that did.

    Before each chunk the numbers are NaN, and so is what lies before them and after, and all else
    that is to be written.
    """
    from relpos.ops.triton import backward, stored_scores

    calls, gradients, run_dkdv = [], stored_scores.stored_gradients, stored_scores._Run._run_dkdv

    def guarded_rows(run: Any) -> Tensor:
        plan = run.plan
        numbers = plan.margin + plan.numbers(plan.kv_heads * run.group)
        x = run.call.k.new_full((3 * numbers,), torch.nan)[numbers : 2 * numbers]
        x[: plan.margin] = 0
        return x

    def empty(run: Any, shape: tuple[int, ...]) -> Tensor:
        return run.call.q.new_full(shape, torch.nan, dtype=torch.float32)

    def unwritten(_: str, x: Tensor) -> Tensor:
        return x.new_full(x.shape, torch.nan)

    def with_nan(run: Any, chunk: Any, rows: Any) -> None:
        for x in (rows.d_scores, rows.weights):
            if x is not None:
                x[:, :, : chunk.keys] = torch.nan
        run_dkdv(run, chunk, rows)

    def in_chunks(size: int) -> list[Any]:
        def counted(*call: Any) -> dict[str, Tensor]:
            calls.append(call)
            with monkeypatch.context() as patch:
                patch.setattr(stored_scores, "_MOST_ELEMENTS", size)
                return gradients(*call)

        monkeypatch.setattr(stored_scores, "NARROW", 0)
        monkeypatch.setattr(stored_scores, "SHORT", 0)
        monkeypatch.setattr(stored_scores._Run, "_empty_rows", guarded_rows)
        monkeypatch.setattr(stored_scores._Run, "_empty", empty)
        monkeypatch.setattr(stored_scores, "empty_gradient", unwritten)
        monkeypatch.setattr(stored_scores._Run, "_run_dkdv", with_nan)
        monkeypatch.setattr(backward, "stored_gradients", counted)
        return calls

    return in_chunks


def assert_equals_the_reference(case: Case) -> None:
    named = case.inputs(dtype=FLOAT)
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] if x in SLOW else []) for x in sorted(SHEARED)],
)
@pytest.mark.costly(6)
def test_every_term_equals_the_reference(name: str, stored):
    calls = stored(SIZES[sorted(SHEARED).index(name) % len(SIZES)])
    case = SHEARED[name]
    share = max(1, case.queries / LONGEST, case.keys / LONGEST)
    queries, keys = (max(1, int(x / share)) for x in (case.queries, case.keys))
    # A window of a few keys is not stored.
    window = case.window and tuple(None if x is None else max(x, keys) for x in case.window)
    assert_equals_the_reference(replace(case, batch=1, queries=queries, keys=keys, window=window))
    assert calls


ALL_TERMS = Case(
    batch=3, heads=4, groups=2, queries=40, keys=45, terms="keys queries values",
    table_window=(20, 15),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (SIZES[0], {}),
        (SIZES[1], {"table_heads": 4}),
        (SIZES[1], {"table_heads": 4, "causal": True, "query_start": 30}),
        (SIZES[2], {"table_heads": 4}),
        (SIZES[2], {"terms": "keys values", "window": (35, None)}),
    ],
    ids=str,
)
@pytest.mark.costly(1)
def test_chunks_of_any_size_give_the_same(size: int, settings: dict, stored):
    """Also where the heads of a chunk are of several sequences, and of several tables."""
    calls = stored(size)
    assert_equals_the_reference(replace(ALL_TERMS, **settings))
    assert calls


def test_the_bits_do_not_depend_on_the_run(stored):
    """In the interpreter, whose programs run in order, this says little; on a GPU, much."""
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
    case = replace(SHEARED[name], batch=1)
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
@pytest.mark.costly(1)
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
    length: int, rows: int, backend: str, *, freeze: str = "", bias: bool = False, **options: Any
) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    leaves = {name: torch.randn(1, 1, length, 4, generator=draw) for name in "qkv"}
    width = () if bias else (4,)
    leaves["table"] = torch.randn(1, rows, *width, generator=draw)
    for name, x in leaves.items():
        x.requires_grad_(name != freeze)
    table = OffsetTable(leaves["table"], 1 - rows)
    terms = Terms(bias=table) if bias else Terms(keys=table)
    output = attention(*(leaves[x] for x in "qkv"), terms, causal=True, backend=backend, **options)
    output.sum().backward()
    return {name: x.grad for name, x in leaves.items() if x.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "settings", "stores"),
    [
        (120, {}, True),
        (100, {}, False),
        (120, {"least_width": 5}, False),
        (120, {"bias": True}, False),
        (120, {"freeze": "v"}, False),
        (120, {"freeze": "table"}, False),
        (120, {"window": (20, None)}, False),
        (120, {"documents": torch.arange(106)[None] // 18}, False),
    ],
    ids=lambda x: str(x) if isinstance(x, int) else " ".join(x),
)
@pytest.mark.costly(3)
def test_what_is_stored(rows: int, settings: dict[str, Any], stores: bool, monkeypatch):
    """Where a table that is sheared is wide and all is learnt; its length is the window's."""
    from relpos.ops.triton import call_plan, launch, stored_scores

    settings = {"least_width": 4} | settings
    monkeypatch.setattr(stored_scores, "SHORT", settings.pop("least_width"))
    for module in (stored_scores, call_plan):
        monkeypatch.setattr(module, "NARROW", 102)
    monkeypatch.setattr(call_plan, "_plans", BoundedCache())
    ran, run_programs = set(), launch.run_programs

    def noted(kernel: Any, *arguments: Any, **options: Any) -> None:
        ran.add(kernel.fn.__name__)
        run_programs(kernel, *arguments, **options)

    monkeypatch.setattr(launch, "run_programs", noted)
    found = gradients(106, rows, "triton", **settings)
    assert ("stored_dq_kernel" in ran) == stores
    assert ("dq_kernel" in ran) != stores
    assert_agrees(found, gradients(106, rows, "reference", **settings))


@pytest.mark.parametrize("processors", [2, 20])
@pytest.mark.costly(1)
def test_keys_of_a_chunk_are_split_where_programs_are_few(processors: int, stored, monkeypatch):
    from relpos.ops.triton import stored_scores, tuning

    monkeypatch.setattr(tuning, "processors", lambda _: processors)
    splits, run_dq = [], stored_scores._Run._run_dq
    monkeypatch.setattr(
        stored_scores._Run,
        "_run_dq",
        lambda run, *chunk: splits.append(run._splits_of_keys(chunk[0])) or run_dq(run, *chunk),
    )
    stored(SIZES[2])
    case = replace(ALL_TERMS, batch=2, heads=4, groups=2, rel_width=5, causal=True)
    assert_equals_the_reference(case)
    assert max(splits) == (2 if processors == 2 else 3)


def test_heads_of_one_sequence_are_split_together(stored, monkeypatch):
    from relpos.ops.triton import stored_scores, tuning

    # Programs for so many processors take the heads of a chunk, and few queries of them.
    monkeypatch.setattr(tuning, "processors", lambda _: 20)
    seen, run_dq = [], stored_scores._Run._run_dq
    monkeypatch.setattr(
        stored_scores._Run,
        "_run_dq",
        lambda run, chunk, rows: (
            seen.append((chunk.kv_heads, run._splits_of_keys(chunk))) or run_dq(run, chunk, rows)
        ),
    )
    stored(30_000)
    case = replace(ALL_TERMS, batch=1, heads=6, groups=3, rel_width=5, queries=45, keys=45)
    assert_equals_the_reference(case)
    assert any(heads > 1 and splits > 1 for heads, splits in seen), seen


@pytest.mark.parametrize("query_start", [2**31 - 20, 2**31, -(2**31) - 20, 2**40])
@pytest.mark.parametrize("processors", [2, 20])
def test_queries_may_be_as_far_off_as_their_window_is(
    query_start: int, processors: int, stored, monkeypatch
):
    """Rows that no pair selects are nobody's, whatever 32 bits make of their numbers."""
    from relpos.ops.triton import tuning

    monkeypatch.setattr(tuning, "processors", lambda _: processors)
    calls = stored(SIZES[0])
    assert_equals_the_reference(
        Case(
            batch=1, heads=1, groups=1, queries=37, keys=37, terms="keys", table_window=(20, 20),
            window=(19, 3), query_start=query_start,
        )
    )  # fmt: skip
    assert calls


class Sizes:
    """What a plan reads of a call."""

    def __init__(
        self, batch: int, kv_heads: int, group: int, queries: int, keys: int, causal: bool,
        query_start: int,
    ) -> None:  # fmt: skip
        self.batch, self.kv_heads, self.heads = batch, kv_heads, kv_heads * group
        self.seqlen_q, self.seqlen_k = queries, keys
        self.last_offset, self.query_start = 0 if causal else None, query_start
        self.q = torch.empty(batch, self.heads, queries, 64, dtype=torch.bfloat16, device="meta")
        self.k = torch.empty(batch, kv_heads, keys, 64, dtype=torch.bfloat16, device="meta")
        self.v = self.k


@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 1 << 16),
    st.integers(1, 1 << 16), st.sampled_from([(64, 64), (128, 64), (32, 16)]), st.booleans(),
    st.booleans(), st.integers(-(1 << 16), 1 << 16),
)  # fmt: skip
def test_every_pair_is_in_one_chunk_and_memory_grows_as_the_tokens_do(
    batch: int, kv_heads: int, group: int, queries: int, keys: int, tile: tuple[int, int],
    values: bool, causal: bool, query_start: int,
):  # fmt: skip
    from relpos.ops.triton.stored_scores import LEAST_BYTES, _Plan
    from relpos.ops.triton.tuning import TileShape

    call = Sizes(batch, kv_heads, group, queries, keys, causal, query_start)
    shape = TileShape(*tile, 4, 1)
    plan = _Plan.of(call, frozenset({"values"} if values else ()), shape)
    chunks = list(plan.chunks(call))
    queries_of_heads: dict[tuple[int, int], int] = {}
    for chunk in chunks:
        heads = chunk.first_kv_head, chunk.kv_heads
        assert chunk.i_begin == queries_of_heads.get(heads, 0)
        assert (chunk.i_end - chunk.i_begin) % shape.m == 0 < chunk.i_end - chunk.i_begin
        queries_of_heads[heads] = chunk.i_end
        assert chunk.keys % shape.n == 0
        seen = min(keys, query_start + chunk.i_end) if causal else keys
        assert seen <= chunk.keys < max(seen, 1) + shape.n
    assert all(queries <= end < queries + shape.m for end in queries_of_heads.values())
    assert sum(heads for _, heads in queries_of_heads) == batch * kv_heads
    assert [first for first, _ in queries_of_heads] == [*range(0, batch * kv_heads, plan.kv_heads)]
    numbers = plan.numbers(plan.kv_heads * group)
    assert numbers >= max(
        x.kv_heads * group * (x.i_end - x.i_begin) * (x.keys + plan.margin) for x in chunks
    )
    tensors = sum(2 * x.numel() for x in (call.q, call.k, call.v))
    all_keys = -(-keys // shape.n) * shape.n
    tile_of_queries = 2 * group * shape.m * (all_keys + plan.margin)
    assert (1 + values) * 2 * numbers <= max(tensors, LEAST_BYTES, (1 + values) * tile_of_queries)


def test_causal_queries_are_stored_with_the_keys_that_they_see():
    """The first chunk has more queries, whose rows are shorter; there are fewer chunks."""
    from relpos.ops.triton.stored_scores import _Plan
    from relpos.ops.triton.tuning import TileShape

    causal, all_keys = (
        _Plan.of(Sizes(1, 16, 1, 16384, 16384, causal, 0), frozenset(), TileShape(64, 64, 4, 1))
        for causal in (True, False)
    )
    assert list(causal.keys) == list(causal.ends)
    assert set(all_keys.keys) == {16384}
    sizes = [end - begin for begin, end in zip(causal.begins, causal.ends, strict=True)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 2 * sizes[-1]
    assert 1.5 * len(causal.ends) < len(all_keys.ends)
