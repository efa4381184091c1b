"""Gradients: finite differences judge the reference, the reference judges the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, ON_GPU, every_blockwise
from tests.ops.cases import CASES, Case
from tests.ops.grid_cases import GRID_CASES

SMALL = Case(batch=1, heads=2, groups=1, queries=4, keys=6, width=3, value_width=2, table_heads=2)

CHECKED = {
    "bidirectional": SMALL,
    "causal": replace(SMALL, causal=True, beyond="zero", table_window=(2, 1)),
    "q_rel": replace(SMALL, rel_width=2, table_heads=1, table_window=(9, 9)),
    "queries": replace(SMALL, terms="keys queries"),
    "mask": replace(SMALL, mask="additive", groups=2),
}


@pytest.mark.no_typecheck
@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_gradients_are_the_slopes(name: str, backend: str):
    case = CHECKED[name]
    named = case.inputs()
    names = list(named)
    leaves = [named[name].requires_grad_() for name in names]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return case.run(dict(zip(names, tensors, strict=True)), backend)

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("name", CASES)
@every_blockwise
def test_blockwise_gradients_equal_the_reference(name: str, backend: str):
    case = CASES[name]
    exact = case.gradients(case.inputs(), "reference")
    assert_agrees(case.gradients(case.inputs(dtype=DTYPES[backend]), backend), exact)


@pytest.mark.parametrize(
    "name",
    ["per head", "q_rel", "additive", "several row blocks, causal", "queries, grouped, causal"],
)
@every_blockwise
def test_each_input_alone_gets_the_same_gradient(name: str, backend: str):
    """TRAPS 13: only the table, or only the mask, requires grad."""
    case = CASES[name]
    named = case.inputs(dtype=DTYPES[backend])
    together = case.gradients(named, backend)
    for only, expected in together.items():
        alone = case.gradients(named, backend, only=only)
        assert list(alone) == [only]
        if backend == "triton" and ON_GPU:  # compiled for what is wanted, each rounds its own way
            assert_agrees(alone[only], expected)
        else:
            assert torch.equal(alone[only], expected), only


@every_blockwise
def test_gradient_of_the_output_alone_and_of_the_log_sum_exp_alone(backend: str):
    case = CASES["per head"]
    for part in (0, 1):
        grads = []
        for judge, dtype in ((backend, DTYPES[backend]), ("reference", torch.float64)):
            named = {name: x.requires_grad_() for name, x in case.inputs(dtype=dtype).items()}
            case.run(named, judge)[part].square().sum().backward()
            grads.append({name: x.grad for name, x in named.items() if x.grad is not None})
        for name in grads[0].keys() ^ grads[1].keys():
            # Zeros and no gradient at all mean the same.
            assert not any(found[name].any() for found in grads if name in found), name
        both = grads[0].keys() & grads[1].keys()
        assert_agrees(*({name: found[name] for name in both} for found in grads))


REPEATED = {
    "line": replace(CASES["several row blocks"], batch=2, table_window=(200, 10)),
    "grid": replace(GRID_CASES["joint beside tables"], shape=(13, 17), batch=2),
    "documents": replace(CASES["documents, several row blocks"], batch=2),
}


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """To set the number of threads; the one before comes back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", REPEATED)
@every_blockwise
def test_gradients_are_the_same_bits_each_time(
    name: str, backend: str, count: int, threads: Callable[[int], None]
):
    """TRAPS 15."""
    threads(count)
    case = REPEATED[name]
    named = case.inputs(dtype=torch.float32)
    first = case.run(named, backend), case.gradients(named, backend)
    for _ in range(20 if backend == "native" else 3):
        output, gradients = case.run(named, backend), case.gradients(named, backend)
        assert all(map(torch.equal, output, first[0]))
        assert all(torch.equal(gradients[name], first[1][name]) for name in first[1])


@pytest.mark.parametrize("name", REPEATED)
@every_blockwise
def test_threads_change_rounding_and_no_more(
    name: str, backend: str, threads: Callable[[int], None]
):
    case = REPEATED[name]
    named = case.inputs(dtype=DTYPES[backend])
    results = []
    for count in (1, 2, 3, 5):
        threads(count)
        results.append((case.run(named, backend), case.gradients(named, backend)))
    for output, gradients in results[1:]:
        assert_agrees(output, results[0][0])
        assert_agrees(gradients, results[0][1])


MANY = [(1, 2, 2500, 2300), (1, 1, 2500, 2300), (1, 2, 1, 2300), (2, 1, 2500, 1)]


@pytest.mark.no_typecheck
@pytest.mark.parametrize("sizes", MANY, ids=str)
@pytest.mark.costly(1)
def test_a_mask_of_many_numbers_gets_the_sums_of_all_threads(
    sizes: tuple[int, ...], threads: Callable[[int], None]
):
    """Three copies of the first two are more than `native` takes: there it adds in place."""
    case = Case(batch=2, heads=2, queries=2500, keys=2300, width=4, value_width=4, mask="additive")
    named = case.inputs() | {"mask": torch.randn(sizes, dtype=torch.float64)}
    exact = case.gradients(named, "reference", only="mask")
    named = {name: x.float() for name, x in named.items()}
    for count in (3, 1):
        threads(count)
        found = [case.gradients(named, "native", only="mask") for _ in range(2)]
        assert_agrees(found[0], exact)
        assert torch.equal(found[0]["mask"], found[1]["mask"])


@pytest.mark.parametrize("sizes", MANY, ids=str)
def test_a_mask_of_many_numbers_for_an_empty_batch_gets_zeros(
    sizes: tuple[int, ...], threads: Callable[[int], None]
):
    threads(3)
    case = Case(batch=0, heads=2, queries=2500, keys=2300, width=4, value_width=4, mask="additive")
    mask = torch.randn(min(sizes[0], 1), *sizes[1:])
    named = {name: x.float() for name, x in case.inputs().items()} | {"mask": mask}
    assert not case.gradients(named, "native", only="mask")["mask"].any()
