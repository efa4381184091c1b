"""What the op means, whichever backend computes it: judged by the NumPy double loop."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relpos import OffsetTable, Terms, attention
from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, every_backend, every_blockwise, native_alone
from tests.ops.cases import CASES, Case, any_case
from tests.ops.results import HasResults


@cache
def defined(case: Case, seed: int) -> tuple[Tensor, Tensor]:
    """The double loop's output and log-sum-exp, of the numbers that all backends get."""
    return case.define(case.inputs(seed))


def assert_defined(case: Case, backend: str, seed: int = 0) -> None:
    """Output and log-sum-exp of a backend are the double loop's."""
    assert_agrees(case.run(case.inputs(seed, DTYPES[backend]), backend), defined(case, seed))


def assert_has_the_slopes_of_the_reference(case: Case, backend: str, seed: int = 0) -> None:
    """Gradients of a backend are those of the reference in float64."""
    exact = case.gradients(case.inputs(seed), "reference")
    assert_agrees(case.gradients(case.inputs(seed, DTYPES[backend]), backend), exact)


@pytest.mark.parametrize("name", CASES)
@every_backend
def test_every_backend_computes_the_definition(name: str, backend: str):
    assert_defined(CASES[name], backend)


@every_backend
@settings(max_examples=200, deadline=None, derandomize=True)
@given(case=any_case(), seed=st.integers(0, 999))
def test_any_shape_window_and_mask_computes_the_definition(backend: str, case: Case, seed: int):
    assert_defined(case, backend, seed)


@every_blockwise
@settings(max_examples=200, deadline=None, derandomize=True)
@given(case=any_case(), seed=st.integers(0, 999))
def test_any_shape_window_and_mask_has_the_reference_gradients(backend: str, case: Case, seed: int):
    assert_has_the_slopes_of_the_reference(case, backend, seed)


@every_backend
def test_moving_all_positions_changes_nothing(backend: str):
    """Offsets alone count: rows before or after do not, nor where the row begins."""
    case = replace(
        CASES["keys"], terms="keys queries bias values", queries=7, keys=20, query_start=5
    )
    named = case.inputs(dtype=DTYPES[backend])
    here = case.run(named, backend)[0]
    longer = dict(named)
    for name in ("k", "v"):
        longer[name] = torch.cat([named[name], named[name][:, :, :3]], 2).roll(3, 2)
    seen = torch.ones(1, 1, 1, 23, dtype=torch.bool)
    seen[..., :3] = False
    there = replace(case, query_start=8).run(longer | {"mask": seen}, backend)[0]
    assert_agrees(there, here)


@pytest.mark.parametrize("sign", [-1, 1])
@every_backend
def test_positions_may_be_as_far_away_as_integers_allow(backend: str, sign: int):
    x, far = torch.randn(1, 1, 3, 4, dtype=DTYPES[backend]), 2**60 - 1
    rows, start = torch.randn(1, 2, 4, dtype=DTYPES[backend]), sign * far

    def run(first: int, query_start: int) -> Tensor:
        terms = Terms(keys=OffsetTable(rows, first, "zero"))
        return attention(x, x, x, terms, query_start=query_start, backend=backend)

    assert_agrees(run(-start, start), run(0, 0))
    assert_agrees(run(start, start), attention(x, x, x, backend=backend))


@every_backend
def test_without_tables_a_permutation_of_the_keys_changes_nothing(backend: str):
    case = CASES["plain"]
    named = case.inputs(dtype=DTYPES[backend])
    order = torch.randperm(case.keys, generator=torch.Generator().manual_seed(1))
    mixed = named | {name: named[name][:, :, order] for name in ("k", "v")}
    assert_agrees(case.run(mixed, backend), case.run(named, backend))


@every_backend
@pytest.mark.parametrize("name", ["causal", "only the past", "grouped, per head"])
def test_chunks_of_queries_equal_one_pass(backend: str, name: str):
    """TRAPS 4: with fewer queries than keys the queries are the last ones."""
    case = CASES[name]
    named = case.inputs(dtype=DTYPES[backend])
    whole = case.run(named, backend)[0]
    parts, begin = [], 0
    for end in (1, 6, 7, 20, 33):
        chunk = {
            "q": named["q"][:, :, begin:end],
            "k": named["k"][:, :, :end],
            "v": named["v"][:, :, :end],
        }
        parts.append(case.run(named | chunk, backend)[0])
        begin = end
    assert_agrees(torch.cat(parts, 2), whole)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("kv_heads", [1, 8])
@native_alone
def test_scores_of_heads_decoded_together_are_those_of_each_alone_to_the_bit(
    backend: str, kv_heads: int, queries: int
):
    """However many rows are multiplied at once: backward computes the same scores again."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 8, queries, 40, generator=generator)
    k = torch.randn(1, kv_heads, 1100, 40, generator=generator)
    table = OffsetTable(torch.randn(1, 700, 40, generator=generator), -690)

    def lse(q: Tensor, k: Tensor) -> Tensor:
        terms = Terms(keys=table)
        return attention(q, k, k, terms, causal=True, backend=backend, return_lse=True)[1]

    alone = [lse(q[:, n : n + 1], k[:, n * kv_heads // 8 :][:, :1]) for n in range(8)]
    assert torch.equal(lse(q, k), torch.cat(alone, 1))


@every_backend
def test_the_future_of_the_tables_cannot_be_seen(backend: str):
    """TRAPS 1: NaN in every row of a positive offset leaves a causal output untouched."""
    case = replace(CASES["only the past"], table_window=(64, 5), terms="keys queries bias")
    named = case.inputs(dtype=DTYPES[backend])
    poisoned = {name: tensor.clone() for name, tensor in named.items()}
    for name in ("keys", "queries", "bias"):
        poisoned[name][:, 1 - case.tables(named)[name].first :] = torch.nan
    assert torch.equal(case.run(poisoned, backend)[0], case.run(named, backend)[0])


@every_blockwise
def test_the_rows_of_the_future_are_never_read(backend: str):
    """TRAPS 1: not even multiplied by a weight of zero, forward or backward."""
    case = replace(CASES["only the past"], table_window=(64, 5))
    named = case.inputs(dtype=DTYPES[backend])
    poisoned = {name: tensor.clone() for name, tensor in named.items()}
    for name in ("keys", "queries", "bias", "values"):
        poisoned[name][:, 1 - case.tables(named)[name].first :] = torch.nan
    assert_same_with(case, backend, named, poisoned)


@every_blockwise
@pytest.mark.parametrize("poison", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize(
    "case",
    [
        replace(CASES["only the past"], keys=65, query_start=20),
        replace(CASES["several row blocks, causal"], query_start=-30),
        CASES["documents and padding"],
    ],
    ids=["future", "far future", "padding"],
)
def test_keys_that_no_query_reaches_are_never_read(
    backend: str, case: Case, which: str, poison: float
):
    named = case.inputs(dtype=DTYPES[backend])
    if "documents" in named:
        hidden = (named["documents"] < 0)[:, None, :, None]
    else:
        hidden = (torch.arange(case.keys) >= case.query_start + case.queries)[:, None]
    assert hidden.any()
    assert_same_with(
        case, backend, named, named | {which: named[which].masked_fill(hidden, poison)}
    )


def assert_same_with(case: HasResults, backend: str, named: dict, poisoned: dict) -> None:
    """The same bits, forward and backward."""
    assert torch.equal(case.run(poisoned, backend)[0], case.run(named, backend)[0])
    clean = case.gradients(named, backend)
    for name, gradient in case.gradients(poisoned, backend).items():
        assert torch.equal(gradient, clean[name]), name


@every_backend
def test_masked_keys_cannot_be_seen(backend: str):
    case = replace(CASES["padding"], causal=True)
    named = case.inputs(dtype=DTYPES[backend])
    other = dict(named)
    hidden = ~named["mask"].view(2, 1, -1, 1)
    other["k"] = named["k"].masked_fill(hidden, 1e6)
    other["v"] = named["v"].masked_fill(hidden, 1e6)
    assert torch.equal(case.run(named, backend)[0], case.run(other, backend)[0])


@every_backend
def test_a_row_without_keys_gives_zeros_and_no_gradient(backend: str):
    """TRAPS 11."""
    case = CASES["padding"]
    named = case.inputs(dtype=DTYPES[backend])
    output, lse = case.run(named, backend)
    assert (output[0] == 0).all()
    assert (lse[0] == -torch.inf).all()
    for name, gradient in case.gradients(named, backend).items():
        assert gradient.isfinite().all(), name
        if name in ("q", "k", "v"):
            assert (gradient[0] == 0).all(), name


@every_backend
def test_the_smallest_number_as_a_mask_does_not_overflow_in_half_precision(backend: str):
    """TRAPS 11: `finfo.min` plus a bias is -inf in float16."""
    q = torch.ones(1, 1, 3, 4, dtype=torch.float16)
    terms = Terms(bias=OffsetTable(torch.full((1, 1), -99.0, dtype=torch.float16), 0))
    mask = torch.full((1, 1, 3, 3), torch.finfo(torch.float16).min, dtype=torch.float16)
    mask[..., 0] = 0
    assert attention(q, q, q, terms, mask=mask, backend=backend).isfinite().all()


@every_backend
def test_heads_have_their_own_rows(backend: str):
    """TRAPS 10: head 0's positions for all heads would pass any test with shared tables."""
    case = CASES["bias"]
    named = case.inputs(dtype=DTYPES[backend])
    swapped = named | {"bias": named["bias"].flip(0)}
    output = case.run(named, backend)[0]
    other = case.run(swapped | {x: named[x].flip(1) for x in "qkv"}, backend)[0]
    assert_agrees(other.flip(1), output)
    assert not torch.allclose(case.run(swapped, backend)[0], output)


def assert_computes_what_the_reference_does(case: Case, backend: str, seed: int = 0) -> None:
    """Output, log-sum-exp and gradients, where the double loop would take too long."""
    exact = case.run(case.inputs(seed), "reference")
    assert_agrees(case.run(case.inputs(seed, DTYPES[backend]), backend), exact)
    assert_has_the_slopes_of_the_reference(case, backend, seed)


@every_blockwise
def test_many_heads_and_batches_fall_into_several_blocks(backend: str):
    """Blocks cut batches and heads too, with tables of every head its own."""
    case = Case(
        batch=5, heads=12, groups=6, queries=130, keys=515, width=4, value_width=4,
        table_heads=12, table_window=(200, 90), mask="column", causal=True,
    )  # fmt: skip
    assert_computes_what_the_reference_does(case, backend)


@pytest.mark.no_typecheck
@pytest.mark.slow
@every_blockwise
@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=any_case(longest=600), seed=st.integers(0, 999))
def test_lengths_of_several_blocks_compute_what_the_reference_does(
    backend: str, case: Case, seed: int
):
    assert_computes_what_the_reference_does(case, backend, seed)


@every_backend
def test_a_row_whose_scores_overflow_gives_zeros_in_every_backend(backend: str):
    """No mask says so: -inf from the tables, or from finite numbers that are too large."""
    ones, endless = torch.ones(1, 1, 2, 2), torch.full((1, 1, 2), -torch.inf)
    huge = 1e30 * ones
    for q, terms in ((ones, Terms(queries=OffsetTable(endless, 0))), (-huge, Terms())):
        output, lse = attention(q, huge, ones, terms, backend=backend, return_lse=True)
        assert torch.equal(output, torch.zeros_like(ones))
        assert (lse == -torch.inf).all()


@every_backend
def test_a_row_of_scores_far_below_0_averages_its_values(backend: str):
    """Where an additive mask of -1e9 hides every key, lse has no digits left for their number."""
    dtype = DTYPES[backend]
    far = -1e9 if dtype == torch.float32 else -1e18
    q, k = torch.zeros(1, 1, 2, 4, dtype=dtype), torch.zeros(1, 1, 3, 4, dtype=dtype)
    v = torch.eye(3, dtype=dtype)[None, None]
    mask = torch.full((1, 1, 2, 3), far, dtype=dtype, requires_grad=True)
    output, lse = attention(q, k, v, mask=mask, backend=backend, return_lse=True)
    third = torch.full_like(mask, 1 / 3)
    assert_agrees(output, third)
    assert_agrees(torch.autograd.grad(lse.sum(), mask, retain_graph=True)[0], third)
    expected = (torch.eye(3, dtype=dtype)[0] - 1 / 3) / 3
    assert_agrees(torch.autograd.grad(output[..., 0].sum(), mask)[0], expected.expand_as(mask))


@every_backend
def test_nan_is_not_hidden(backend: str):
    q = torch.ones(1, 1, 2, 2)
    q[0, 0, 1] = torch.nan
    output = attention(q, torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2), backend=backend)
    assert output[0, 0, 0].isfinite().all()
    assert output[0, 0, 1].isnan().all()


@every_backend
def test_an_empty_batch_of_documents_gives_nothing(backend: str):
    x, documents = torch.zeros(0, 2, 3, 4), torch.zeros(0, 3, dtype=torch.int64)
    assert attention(x, x, x, documents=documents, backend=backend).shape == x.shape
