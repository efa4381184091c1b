"""Each backend's error against float64 stays within twice the reference's, in every dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from relpos import OffsetTable, Terms, attention
from relpos.ops.native.library import instructions
from tests.ops.agreement import assert_agrees, assert_within_budget, cast
from tests.ops.backends import DTYPES, every_backend, every_blockwise, every_cpu_blockwise
from tests.ops.cases import CASES, Case
from tests.ops.grid_cases import GRID_CASES, GridCase

NAMES = [
    "keys", "per head", "all offsets, causal", "several row blocks", "grouped, per head",
    "q_rel", "padding", "additive", "zero beyond", "queries", "queries, grouped, causal",
    "documents and padding", "one query", "few queries, grouped", "more queries than keys",
    "values", "q_rel, zero beyond, causal", "documents, mixed", "queries per head",
]  # fmt: skip
GRID_NAMES = [
    "prefix",
    "pooled, between rows",
    "space, prefix, joint",
    "grouped",
    "q_rel, per head",
]
BOTH = {name: CASES[name] for name in NAMES} | {f"grid, {n}": GRID_CASES[n] for n in GRID_NAMES}
LOWER = [torch.float32, torch.bfloat16, torch.float16]


def computed(name: str, dtype: torch.dtype, backend: str, within: torch.dtype) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients of ten draws in `dtype`, computed in another."""
    case, draws = BOTH[name], []
    for seed in range(10):
        named = cast(case.inputs(seed, dtype), within)
        draws.append(case.results(named, backend))
    return {part: torch.stack([draw[part] for draw in draws]) for part in draws[0]}


@cache
def judged(name: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The reference in this dtype, and in float64."""
    return tuple(computed(name, dtype, "reference", d) for d in (dtype, torch.float64))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("name", BOTH)
@every_blockwise
def test_output_and_gradients_are_within_budget(backend: str, name: str, dtype: torch.dtype):
    actual, (reference, exact) = computed(name, dtype, backend, dtype), judged(name, dtype)
    assert actual["output"].dtype == dtype
    for part, found in actual.items():
        assert_within_budget(found, reference[part], exact[part])


def rounds_weights(backend: str, dtype: torch.dtype) -> bool:
    """Whether the weights are in bfloat16 too, as in FlashAttention, not the results alone."""
    if dtype != torch.bfloat16:
        return False
    return backend == "triton" or (backend == "native" and is_on_matrix_unit(dtype))


def is_on_matrix_unit(dtype: torch.dtype) -> bool:
    """Whether `native` multiplies numbers of 16 bits of this dtype there."""
    return instructions() == "amx" or (instructions() == "bfmmla" and dtype == torch.bfloat16)


WITH_A_MEAN = {
    "line": replace(CASES["per head"], queries=600, keys=600),
    "causal": replace(CASES["grouped, per head"], queries=520, keys=600, mask="additive"),
    "few queries": replace(CASES["per head"], queries=4, keys=900),
    "window": replace(CASES["window"], queries=600, keys=600, window=(400, 100)),
    "grid": replace(GRID_CASES["space, prefix, joint"], shape=(9, 6, 11)),
}


@pytest.mark.parametrize("mean", [3.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", WITH_A_MEAN)
@pytest.mark.costly(7)
@every_blockwise
def test_a_mean_of_the_values_costs_gradients_no_digits(
    backend: str, name: str, dtype: torch.dtype, mean: float
):
    """The output's rounding, which grows with it, is no error of what flows to the scores."""
    if rounds_weights(backend, dtype):
        pytest.skip("the weights are rounded there, too")
    assert_a_mean_costs_no_digits(WITH_A_MEAN[name], backend, dtype, mean)


def assert_a_mean_costs_no_digits(
    case: Case | GridCase, backend: str, dtype: torch.dtype, mean: float
) -> None:
    """The gradients are within their budget where values have a mean."""
    found: dict[str, list[Tensor]] = {}
    for seed in range(3):
        named = case.inputs(seed, dtype)
        if mean < 1:
            named["v"] *= 1e-4
        named["v"] += mean
        for way, within, by in (
            ("found", dtype, backend),
            ("reference", dtype, "reference"),
            ("exact", torch.float64, "reference"),
        ):
            for part, x in case.gradients(cast(named, within), by).items():
                found.setdefault(f"{way} {part}", []).append(x)
    for part in {name.split(" ", 1)[1] for name in found}:
        ways = (torch.stack(found[f"{way} {part}"]) for way in ("found", "reference", "exact"))
        assert_within_budget(*ways)


@every_cpu_blockwise
def test_roundings_of_many_rows_have_no_mean(backend: str):
    """Of rows that see few keys the gradient of a bias sums so many that it would show."""
    found: dict[str, list[Tensor]] = {}
    for seed in range(4):
        draws = torch.Generator().manual_seed(seed)
        sizes = {"q": (1, 1, 5000, 16), "k": (1, 1, 200, 16), "v": (1, 1, 200, 16), "bias": (1, 33)}
        named = {n: torch.randn(size, generator=draws) for n, size in sizes.items()}
        named["v"] += 1
        d_output = torch.randn(1, 1, 5000, 16, generator=draws) + 3
        for way, by, dtype in (
            ("found", backend, torch.float32),
            ("reference", "reference", torch.float32),
            ("exact", "reference", torch.float64),
        ):
            q, k, v, bias = (x.to(dtype) for x in named.values())
            bias.requires_grad_()
            output = attention(q, k, v, Terms(bias=OffsetTable(bias, -16)), backend=by)
            found.setdefault(way, []).extend(torch.autograd.grad(output, bias, d_output.to(dtype)))
    actual, reference, exact = (torch.stack(x) for x in found.values())
    assert_within_budget(actual, reference, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["per head", "grid, prefix", "grid, space, prefix, joint"])
@every_cpu_blockwise
def test_half_precision_is_rounded_once(backend: str, name: str, dtype: torch.dtype):
    case = BOTH[name]
    named = case.inputs(dtype=dtype)
    working = case.run(cast(named, torch.float32), backend)[0]
    found = case.run(named, backend)[0]
    if backend == "native" and is_on_matrix_unit(dtype):
        # A matrix unit rounds the weights too: to bfloat16, as the output; else with errors of
        # 2^-16, as what they are multiplied with.
        rounding = torch.finfo(dtype).eps
        weights = rounding if dtype == torch.bfloat16 else 3 * 2**-16
        values = sum(x.float().abs().max() for part, x in named.items() if part.startswith("v"))
        bound = 1.01 * (weights * values + rounding * working.abs())
        assert ((found - working).abs() <= bound).all()
    else:
        assert torch.equal(found, working.to(dtype))


@every_blockwise
def test_a_table_summed_over_many_pairs_keeps_its_precision(backend: str):
    """TRAPS 15: sums over thousands of pairs are taken in float32, whatever the dtype."""
    case = replace(CASES["per head"], batch=3, queries=400, keys=400, table_window=(4, 4))
    named = case.inputs(dtype=torch.bfloat16)
    exact = case.gradients(cast(named, torch.float64), "reference")
    actual = case.gradients(named, backend)
    for name in ("keys", "bias", "values"):
        error = (actual[name].double() - exact[name]).abs().max() / exact[name].abs().max()
        assert error < 2 * torch.finfo(torch.bfloat16).eps, name


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("terms", ["bias", "bias values"])
@every_cpu_blockwise
@pytest.mark.costly(4)
def test_a_bias_summed_over_many_rows_is_off_by_at_most_twice_the_reference(
    backend: str, terms: str, kv_heads: int
):
    """Its ends are sums of nearly all pairs, which one smooth gradient makes large."""
    case = replace(
        CASES["bias"], heads=4, groups=kv_heads, queries=300, keys=300, width=16, value_width=16
    )
    case = replace(case, terms=terms, table_window=(16, 16), table_heads=1)
    errors = {"reference": 0.0, backend: 0.0}
    for seed in range(24):
        named = case.inputs(seed, torch.float32)
        exact = case.gradients(cast(named, torch.float64), "reference", only="bias")["bias"]
        for name in errors:
            found = case.gradients(named, name, only="bias")["bias"]
            errors[name] += (found.double() - exact).square().mean().item()
    assert errors[backend] <= 2**2 * errors["reference"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_backend
@pytest.mark.parametrize("case", [CASES["per head"], GRID_CASES["joint beside tables"]])
def test_autocast_rounds_the_inputs_and_no_more(case, backend: str, dtype: torch.dtype):
    named = case.inputs(dtype=torch.float32)
    rounded = cast(named, dtype)
    named = {name: tensor.requires_grad_() for name, tensor in named.items()}
    with torch.autocast("cpu", dtype):
        output, lse = case.run(named, backend)
    plain, plain_lse = case.run(rounded, backend)
    assert output.dtype == dtype
    assert torch.equal(output, plain)
    assert torch.equal(lse, plain_lse)
    output.float().sum().backward()
    assert all(tensor.grad.dtype == torch.float32 for tensor in named.values())  # type: ignore[union-attr]


def test_autocast_leaves_float64_alone():
    case = CASES["per head"]
    named = case.inputs()
    with torch.autocast("cpu", torch.bfloat16):
        output = case.run(named, "tiled")[0]
    assert torch.equal(output, case.run(named, "tiled")[0])


def negated(x: Tensor) -> Tensor:
    """The same numbers, of which memory holds the negative ones."""
    seen = torch.complex(torch.zeros_like(x), -x).conj().imag if x.is_floating_point() else x
    assert seen.is_neg() == x.is_floating_point()
    return seen


@every_blockwise
def test_backward_within_autocast_computes_the_same(backend: str):
    case = CASES["per head"]
    named = {name: x.requires_grad_() for name, x in case.inputs(dtype=torch.float32).items()}
    grads = []
    for enabled in (False, True):
        output, lse = case.run(named, backend)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            parts = output.sum() + lse.sum()
            grads.append(torch.autograd.grad(parts, list(named.values())))
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "every second number": lambda x: torch.stack([x, x], -1).select(-1, 0),
    "heads beside their numbers": lambda x: x.transpose(1, -2).contiguous().transpose(1, -2),
    "transposed": lambda x: x.mT.contiguous().mT,
    "within a larger tensor": lambda x: torch.nn.functional.pad(x, (3, 2, 1, 0))[..., 1:, 3:-2],
    "negated": negated,
    "off the beginning": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "case", [CASES["grouped"], CASES["additive"], GRID_CASES["q_rel"]], ids=["line", "mask", "grid"]
)
@every_backend
def test_memory_layout_does_not_matter(backend: str, case, layout: str):
    named = case.inputs(dtype=DTYPES[backend])
    moved = {name: LAYOUTS[layout](x) for name, x in named.items()}
    assert all(torch.equal(moved[name], x) for name, x in named.items())
    assert_agrees(case.run(moved, backend), case.run(named, backend))
    assert_agrees(case.gradients(moved, backend), case.gradients(named, backend))


@every_backend
def test_inputs_and_gradients_may_be_one_number_seen_many_times(backend: str):
    """Expanded tensors, and the gradient of a sum."""
    case = CASES["grouped"]
    named = case.inputs(dtype=DTYPES[backend])
    few = named | {name: named[name][:1, :1] for name in "qkv"}
    grads = []
    for whole in (torch.Tensor.clone, lambda x: x):
        leaves = {name: x.clone().requires_grad_() for name, x in few.items()}
        seen = {name: whole(leaves[name].expand_as(x)) for name, x in named.items()}
        output, lse = case.run(seen, backend)
        scale = torch.full((), 2.0, dtype=output.dtype)
        weights = [whole(scale.expand_as(part)) for part in (output, lse)]
        grads.append(torch.autograd.grad([output, lse], list(leaves.values()), weights))
    assert_agrees(*grads)


@every_backend
def test_agrees_with_torch_where_there_are_no_terms(backend: str):
    q, k, v = (torch.randn(2, 3, 65, 8, dtype=DTYPES[backend]) for _ in range(3))
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert_agrees(attention(q, k, v, causal=True, backend=backend), plain)
