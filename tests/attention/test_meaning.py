"""What the op means, whichever backend computes it: judged by the NumPy double loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relpos import OffsetTable, Terms, attention

from .cases import CASES, Case

BACKENDS = ("reference", "tiled")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_computes_the_definition(name: str, backend: str):
    case = CASES[name]
    named = case.inputs()
    output, lse = case.run(named, backend)
    expected, expected_lse = case.define(named)
    torch.testing.assert_close(output, torch.from_numpy(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, torch.from_numpy(expected_lse), rtol=0, atol=1e-12)


MASKS = (None, "padding", "pairs", "additive", "additive, hiding", "column")


@st.composite
def any_case(draw) -> Case:
    groups, repeat = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    heads = groups * repeat
    left = draw(st.integers(-3, 40))
    documents = draw(st.sampled_from([None, None, "runs", "runs, padded", "mixed"]))
    keys = draw(st.integers(1, 24))
    queries = draw(st.integers(1, 24 if documents is None else keys))
    terms = sorted(draw(st.sets(st.sampled_from(["keys", "queries", "bias", "values"]))))
    return Case(
        batch=draw(st.integers(1, 2)),
        heads=heads,
        groups=groups,
        queries=queries,
        keys=keys,
        documents=documents,
        width=draw(st.sampled_from([1, 3, 8])),
        value_width=draw(st.sampled_from([1, 5])),
        terms=" ".join(terms),
        rel_width=draw(st.sampled_from([None, 2])) if "keys" in terms else None,
        window=(left, draw(st.integers(-left, 40))),
        beyond=draw(st.sampled_from(["clamp", "zero"])),
        table_heads=draw(st.sampled_from([1, heads])),
        causal=draw(st.booleans()),
        mask=draw(st.sampled_from(MASKS)),
        query_start=draw(st.sampled_from([None, -5, 0, 9])) if documents is None else None,
        scale=draw(st.sampled_from([None, 0.3])),
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=any_case(), seed=st.integers(0, 999))
def test_any_shape_window_and_mask_computes_the_definition(case: Case, seed: int):
    named = case.inputs(seed)
    expected, expected_lse = case.define(named)
    for backend in BACKENDS:
        output, lse = case.run(named, backend)
        torch.testing.assert_close(output, torch.from_numpy(expected), rtol=0, atol=1e-11)
        torch.testing.assert_close(lse, torch.from_numpy(expected_lse), rtol=0, atol=1e-11)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=any_case(), seed=st.integers(0, 999))
def test_any_shape_window_and_mask_has_the_reference_gradients(case: Case, seed: int):
    named = case.inputs(seed)
    torch.testing.assert_close(
        case.gradients(named, "tiled"), case.gradients(named, "reference"), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_moving_all_positions_changes_nothing(backend: str):
    """Offsets alone count: rows before or after do not, nor where the row begins."""
    case = replace(
        CASES["keys"], terms="keys queries bias values", queries=7, keys=20, query_start=5
    )
    named = case.inputs()
    here = case.run(named, backend)[0]
    longer = dict(named)
    for name in ("k", "v"):
        longer[name] = torch.cat([named[name], named[name][:, :, :3]], 2).roll(3, 2)
    seen = torch.ones(1, 1, 1, 23, dtype=torch.bool)
    seen[..., :3] = False
    there = replace(case, query_start=8).run(longer | {"mask": seen}, backend)[0]
    torch.testing.assert_close(here, there, rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_tables_a_permutation_of_the_keys_changes_nothing(backend: str):
    case = CASES["plain"]
    named = case.inputs()
    order = torch.randperm(case.keys, generator=torch.Generator().manual_seed(1))
    mixed = named | {name: named[name][:, :, order] for name in ("k", "v")}
    torch.testing.assert_close(case.run(named, backend)[0], case.run(mixed, backend)[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["causal", "only the past", "grouped, per head"])
def test_chunks_of_queries_equal_one_pass(backend: str, name: str):
    """TRAPS 4: with fewer queries than keys the queries are the last ones."""
    case = CASES[name]
    named = case.inputs()
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
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_future_of_the_tables_cannot_be_seen(backend: str):
    """TRAPS 1: NaN in every row of a positive offset leaves a causal output untouched."""
    case = replace(CASES["only the past"], window=(64, 5), terms="keys queries bias")
    named = case.inputs()
    poisoned = {name: tensor.clone() for name, tensor in named.items()}
    for name in ("keys", "queries", "bias"):
        poisoned[name][:, 1 - case.tables(named)[name].first :] = torch.nan
    assert torch.equal(case.run(poisoned, backend)[0], case.run(named, backend)[0])


def test_tiled_never_reads_the_rows_of_the_future():
    """TRAPS 1: not even multiplied by a weight of zero, forward or backward."""
    case = replace(CASES["only the past"], window=(64, 5))
    named = case.inputs()
    poisoned = {name: tensor.clone() for name, tensor in named.items()}
    for name in ("keys", "queries", "bias", "values"):
        poisoned[name][:, 1 - case.tables(named)[name].first :] = torch.nan
    assert torch.equal(case.run(poisoned, "tiled")[0], case.run(named, "tiled")[0])
    clean = case.gradients(named, "tiled")
    for name, gradient in case.gradients(poisoned, "tiled").items():
        assert torch.equal(gradient, clean[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_keys_cannot_be_seen(backend: str):
    case = replace(CASES["padding"], causal=True)
    named = case.inputs()
    other = dict(named)
    hidden = ~named["mask"].view(2, 1, -1, 1)
    other["k"] = named["k"].masked_fill(hidden, 1e6)
    other["v"] = named["v"].masked_fill(hidden, 1e6)
    assert torch.equal(case.run(named, backend)[0], case.run(other, backend)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_without_keys_gives_zeros_and_no_gradient(backend: str):
    """TRAPS 11."""
    case = CASES["padding"]
    named = case.inputs()
    output, lse = case.run(named, backend)
    assert (output[0] == 0).all()
    assert (lse[0] == -torch.inf).all()
    for name, gradient in case.gradients(named, backend).items():
        assert gradient.isfinite().all(), name
        if name in ("q", "k", "v"):
            assert (gradient[0] == 0).all(), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_smallest_number_as_a_mask_does_not_overflow_in_half_precision(backend: str):
    """TRAPS 11: `finfo.min` plus a bias is -inf in float16."""
    q = torch.ones(1, 1, 3, 4, dtype=torch.float16)
    terms = Terms(bias=OffsetTable(torch.full((1, 1), -99.0, dtype=torch.float16), 0))
    mask = torch.full((1, 1, 3, 3), torch.finfo(torch.float16).min, dtype=torch.float16)
    mask[..., 0] = 0
    assert attention(q, q, q, terms, mask=mask, backend=backend).isfinite().all()


def test_heads_have_their_own_rows():
    """TRAPS 10: head 0's positions for all heads would pass any test with shared tables."""
    case = CASES["bias"]
    named = case.inputs()
    swapped = named | {"bias": named["bias"].flip(0)}
    for backend in BACKENDS:
        output = case.run(named, backend)[0]
        other = case.run(swapped | {x: named[x].flip(1) for x in "qkv"}, backend)[0]
        torch.testing.assert_close(other.flip(1), output)
        assert not torch.allclose(case.run(swapped, backend)[0], output)


def test_many_heads_and_batches_fall_into_several_blocks():
    """Blocks cut batches and heads too, with tables of every head its own."""
    case = Case(
        batch=5, heads=12, groups=6, queries=130, keys=515, width=4, value_width=4,
        table_heads=12, window=(200, 90), mask="column", causal=True,
    )  # fmt: skip
    named = case.inputs()
    torch.testing.assert_close(case.run(named, "tiled"), case.run(named, "reference"))
    there, here = case.gradients(named, "tiled"), case.gradients(named, "reference")
    torch.testing.assert_close(there, here)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_whose_scores_overflow_gives_zeros_in_every_backend(backend: str):
    """No mask says so: -inf from the tables, or from finite numbers that are too large."""
    ones, endless = torch.ones(1, 1, 2, 2), torch.full((1, 1, 2), -torch.inf)
    huge = 1e30 * ones
    for q, terms in ((ones, Terms(queries=OffsetTable(endless, 0))), (-huge, Terms())):
        output, lse = attention(q, huge, ones, terms, backend=backend, return_lse=True)
        assert torch.equal(output, torch.zeros_like(ones))
        assert (lse == -torch.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_is_not_hidden(backend: str):
    q = torch.ones(1, 1, 2, 2)
    q[0, 0, 1] = torch.nan
    output = attention(q, torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2), backend=backend)
    assert output[0, 0, 0].isfinite().all()
    assert output[0, 0, 1].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_of_documents_gives_nothing(backend: str):
    x, documents = torch.zeros(0, 2, 3, 4), torch.zeros(0, 3, dtype=torch.int64)
    assert attention(x, x, x, documents=documents, backend=backend).shape == x.shape
