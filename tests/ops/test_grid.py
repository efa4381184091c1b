"""What the op means for tokens on a grid: every backend against the NumPy double loop."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relpos import GridTerms, OffsetTable, Terms, attention, attention_weights, merge, summed_rows
from relpos import relative_logits as added_logits
from relpos.ops import axis_terms
from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, every_backend, every_blockwise
from tests.ops.grid_cases import BASE, GRID_CASES, GridCase, any_grid


@cache
def defined(case: GridCase, seed: int) -> tuple[Tensor, Tensor]:
    """The double loop's output and log-sum-exp, of the numbers that all backends get."""
    return case.define(case.inputs(seed))


def assert_defined(case: GridCase, backend: str, seed: int = 0) -> None:
    """Output and log-sum-exp of a backend are the double loop's."""
    assert_agrees(case.run(case.inputs(seed, DTYPES[backend]), backend), defined(case, seed))


def assert_has_the_slopes_of_the_reference(case: GridCase, backend: str, seed: int = 0) -> None:
    """Gradients of a backend are those of the reference in float64."""
    exact = case.gradients(case.inputs(seed), "reference")
    assert_agrees(case.gradients(case.inputs(seed, DTYPES[backend]), backend), exact)


@pytest.mark.parametrize("name", GRID_CASES)
@every_backend
@pytest.mark.costly(44)
def test_every_backend_computes_the_definition(name: str, backend: str):
    assert_defined(GRID_CASES[name], backend)


@pytest.mark.parametrize("name", GRID_CASES)
@every_blockwise
def test_all_backends_have_the_same_gradients(name: str, backend: str):
    assert_has_the_slopes_of_the_reference(GRID_CASES[name], backend)


@pytest.mark.parametrize("in_any_order", [False, True])
@pytest.mark.parametrize("name", GRID_CASES)
@pytest.mark.costly(12)
def test_a_row_for_each_pair_of_coordinates_gives_what_the_shear_does(
    name: str, in_any_order: bool, monkeypatch
):
    """On a GPU that is the way, without embeddings of many indices: their gradients vary there."""
    monkeypatch.setattr(axis_terms, "_is_sheared", lambda *_: False)
    if in_any_order:
        for module in (axis_terms, summed_rows):
            monkeypatch.setattr(module, "adds_repeated_rows_in_any_order", lambda _: True)
        monkeypatch.setattr(summed_rows, "_MOST_INDICES", 5)
    assert_defined(GRID_CASES[name], "tiled")
    assert_has_the_slopes_of_the_reference(GRID_CASES[name], "tiled")


@every_backend
@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=any_grid(), seed=st.integers(0, 999))
def test_any_grid_computes_the_definition(backend: str, case: GridCase, seed: int):
    assert_defined(case, backend, seed)


@every_blockwise
@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=any_grid(), seed=st.integers(0, 999))
def test_all_backends_have_the_same_gradients_on_any_grid(backend: str, case: GridCase, seed: int):
    assert_has_the_slopes_of_the_reference(case, backend, seed)


@pytest.mark.no_typecheck
@every_blockwise
def test_many_heads_and_batches_fall_into_several_blocks(backend: str):
    """A bias that all of the batch shares is summed over blocks."""
    case = GridCase((20, 26), batch=3, heads=6, groups=6, width=2, terms="bias", joint_bias=True)
    exact = case.run(case.inputs(), "reference")
    assert_agrees(case.run(case.inputs(dtype=DTYPES[backend]), backend), exact)
    assert_has_the_slopes_of_the_reference(case, backend)


@every_backend
@settings(max_examples=50, deadline=None, derandomize=True)
@given(case=any_grid(), seed=st.integers(0, 999))
def test_any_parts_of_the_keys_merge_to_one_pass(backend: str, case: GridCase, seed: int):
    case = replace(case, mask=None)
    named = case.inputs(seed, DTYPES[backend])
    keys = named["k"].shape[2]
    part = torch.randint(0, 3, (1, 1, 1, keys), generator=torch.Generator().manual_seed(seed))
    parts = [case.run(named, backend, mask=part == n) for n in range(3)]
    assert_agrees(merge(*zip(*parts, strict=True)), case.run(named, backend))


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    "case",
    [
        replace(BASE, shape=(2, 3), prefix=1, joint_bias=True, rel_width=2, table_heads=2),
        replace(BASE, shape=(2, 3), query_shape=(1, 2), terms="keys values", beyond="zero"),
    ],
    ids=["all tables", "between rows"],
)
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_gradients_are_exact_in_every_tensor(case: GridCase, backend: str):
    named = replace(case, width=2, value_width=2).inputs()
    names = list(named)

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return case.run(dict(zip(names, tensors, strict=True)), backend)

    leaves = [tensor.requires_grad_() for tensor in named.values()]
    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("name", ["prefix", "pooled, between rows", "joint beside tables"])
def test_weights_and_logits_are_the_definitions(name: str):
    case = replace(GRID_CASES[name], heads=1, groups=1)
    named = case.inputs()
    terms = case.terms_of(named)
    keys = named["k"].shape[2]
    # With the identity as values and no table on them, the output is the weights.
    identity = torch.eye(keys, dtype=torch.float64).expand(1, 1, -1, -1)
    bare = replace(case, terms="keys queries bias")
    expected, lse = bare.define(named | {"v": identity})
    weights = attention_weights(named["q"], named["k"], terms)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-13)
    scores = expected.log() + lse[..., None]
    content = named["q"] @ named["k"].mT / case.width**0.5
    torch.testing.assert_close(
        added_logits(named["q"], named["k"], terms), scores - content, rtol=0, atol=1e-11
    )


@every_backend
def test_moving_the_grid_moves_the_output(backend: str):
    """Offsets alone count: a larger grid whose further tokens are hidden changes nothing."""
    case = replace(BASE, reach=3, joint_bias=False)
    named = case.inputs(dtype=DTYPES[backend])
    here, _ = case.run(named, backend)
    height, width = case.shape
    larger = replace(case, shape=(height + 2, width + 3))
    tokens = torch.arange(prod(larger.shape)).view(larger.shape)[2:, 3:].flatten()
    moved = larger.inputs(1, DTYPES[backend]) | {n: x for n, x in named.items() if n[-1].isdigit()}
    for name in "qkv":
        moved[name][:, :, tokens] = named[name]
    moved["mask"] = torch.zeros(1, 1, 1, prod(larger.shape), dtype=torch.bool)
    moved["mask"][..., tokens] = True
    there, _ = larger.run(moved, backend)
    assert_agrees(there[:, :, tokens], here)


@every_backend
def test_swapping_the_axes_permutes_the_tokens(backend: str):
    """TRAPS 2: height and width are two things, on maps that are not square."""
    case = replace(BASE, joint_bias=True, table_heads=2)
    named = case.inputs(dtype=DTYPES[backend])
    height, width = case.shape
    swapped = {
        name.replace("0", "2").replace("1", "0").replace("2", "1"): tensor
        for name, tensor in named.items()
    }
    swapped["joint_bias"] = named["joint_bias"].mT
    order = torch.arange(height * width).view(height, width).mT.flatten()
    for name in "qkv":
        swapped[name] = named[name][:, :, order]
    other = replace(case, shape=(width, height)).run(swapped, backend)[0]
    assert_agrees(other, case.run(named, backend)[0][:, :, order])


@every_backend
def test_tokens_before_the_grid_use_no_table(backend: str):
    """Other tables change nothing for class tokens."""
    case = replace(BASE, prefix=2, joint_bias=True)
    named = case.inputs(dtype=DTYPES[backend])
    clean = case.run(named, backend)[0][:, :, :2]
    tables = {n: x + 1 for n, x in named.items() if n[-1].isdigit() or n == "joint_bias"}
    assert_agrees(case.run(named | tables, backend)[0][:, :, :2], clean)


@every_backend
def test_a_row_without_keys_gives_zeros_and_no_gradient(backend: str):
    named = GRID_CASES["pairs"].inputs(dtype=DTYPES[backend])
    output, lse = GRID_CASES["pairs"].run(named, backend)
    assert (output[:, :, 0] == 0).all()
    assert (lse[:, :, 0] == -torch.inf).all()
    for name, gradient in GRID_CASES["pairs"].gradients(named, backend).items():
        assert gradient.isfinite().all(), name


@every_backend
def test_an_empty_batch_with_tables_along_one_axis_alone_gives_an_empty_output(backend: str):
    q = torch.zeros(0, 2, 6, 4, dtype=DTYPES[backend])
    rows = torch.zeros(1, 3, 4, dtype=DTYPES[backend])
    terms = GridTerms((2, 3), (Terms(keys=OffsetTable(rows, -1)), Terms()))
    assert attention(q, q, q, terms, backend=backend).shape == q.shape
