"""Dropout: drawn again in backward, never stored, right in expectation and in gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from relpos import attention, attention_weights
from tests.ops.agreement import ULPS, assert_agrees
from tests.ops.backends import DTYPES, MOST_KEYS, every_backend, every_blockwise
from tests.ops.cases import CASES
from tests.ops.grid_cases import GRID_CASES


@pytest.mark.parametrize("name", ["per head", "several row blocks, causal"])
@every_backend
def test_a_seed_fixes_what_is_dropped(backend: str, name: str):
    case = CASES[name]
    named = case.inputs(dtype=DTYPES[backend])

    def run(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        output = case.run(named, backend, dropout=0.5)[0]
        torch.manual_seed(seed)
        return [output, *case.gradients(named, backend, dropout=0.5).values()]

    assert all(map(torch.equal, run(1), run(1)))
    assert not any(map(torch.equal, run(1), run(2)))
    assert not torch.equal(run(1)[0], case.run(named, backend)[0])


@every_backend
@pytest.mark.parametrize("name", ["per head", "causal"])
def test_the_mean_over_many_draws_is_the_output_without(backend: str, name: str):
    case = replace(CASES[name], batch=1)
    named = case.inputs(dtype=DTYPES[backend])
    many = named | {x: named[x].expand(2000, -1, -1, -1) for x in "qkv"}
    torch.manual_seed(0)
    outputs = case.run(many, backend, dropout=0.3)[0]
    error = outputs.mean(0) - case.run(named, backend)[0][0]
    expected = outputs.std(0) / 2000**0.5
    rounding = ULPS * torch.finfo(error.dtype).eps
    assert ((error.abs() < 6 * expected) | (error.abs() < rounding)).all()


@every_blockwise
def test_the_share_that_is_kept(backend: str):
    keys = min(257, MOST_KEYS[backend])
    q = torch.zeros(4, 4, keys, 8)
    eye = torch.eye(keys).expand(4, 4, -1, -1)
    torch.manual_seed(0)
    weights = attention(q, q, eye, dropout=0.25, backend=backend)
    assert abs((weights > 0).float().mean().item() - 0.75) < 0.003
    torch.testing.assert_close(weights.max(), torch.tensor(1 / keys / 0.75))


def kept_weights(case, backend: str, seed: int, rate: float) -> torch.Tensor:
    """Which weights a backend keeps: with the identity as values, those that are not zero."""
    named = case.inputs(dtype=DTYPES[backend])
    eye = torch.eye(named["k"].shape[2], dtype=DTYPES[backend])
    without = {name: x for name, x in named.items() if not name.startswith("values")}
    terms = " ".join(part for part in case.terms.split() if part != "values")
    kept = []
    for columns in eye.split(MOST_KEYS[backend], 1):  # values as wide as the backend takes
        without["v"] = columns.expand(*named["k"].shape[:2], -1, -1)
        torch.manual_seed(seed)
        kept.append(replace(case, terms=terms).run(without, backend, dropout=rate)[0] != 0)
    return torch.cat(kept, -1)


def leaves_of(case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    named = case.inputs(dtype=dtype)
    return {n: x.requires_grad_(x.is_floating_point()) for n, x in named.items()}


@pytest.mark.parametrize("name", ["prefix", "two before", "pooled, between rows"])
@every_blockwise
def test_values_of_a_grid_come_after_dropout(backend: str, name: str):
    """TRAPS 23: the kept weights alone reach the tables of the values, and their gradients."""
    case = replace(GRID_CASES[name], terms="keys values")
    leaves = leaves_of(case, DTYPES[backend])
    torch.manual_seed(3)
    output = case.run(leaves, backend, dropout=0.5)[0]

    formula = leaves_of(case, torch.float64)
    weights = attention_weights(formula["q"], formula["k"], case.terms_of(formula))
    weights = weights * kept_weights(case, backend, 3, 0.5) * 2
    # Values are linear in the weights: those of each pair, from one key seen at a time.
    wanted = torch.zeros(*weights.shape[:3], case.value_width, dtype=torch.float64)
    for key in range(weights.shape[3]):
        alone = torch.arange(weights.shape[3]) == key
        seen = case.run(formula, "reference", mask=alone)[0]
        wanted = wanted + weights[..., key, None] * seen
    assert_same_slopes(output, leaves, wanted, formula)


def assert_same_slopes(output, leaves: dict, wanted, formula: dict) -> None:
    """Two ways to compute an output have the same numbers and gradients."""
    assert_agrees(output, wanted)
    for total in (output, wanted):
        total.square().sum().backward()
    found, slopes = (
        {n: x.grad for n, x in of.items() if x.requires_grad} for of in (leaves, formula)
    )
    assert_agrees(found, slopes)


@pytest.mark.parametrize(
    "name",
    [
        "per head", "several row blocks, causal", "grouped", "queries, grouped, causal",
        "one query", "window, several row blocks", "ranges, chunks", "softcap, causal",
    ],
)  # fmt: skip
@every_blockwise
def test_gradients_belong_to_the_weights_that_were_kept(backend: str, name: str):
    """Against the formula with the kept weights, known from the forward pass."""
    case = replace(CASES[name], terms="keys queries bias")
    leaves = leaves_of(case, DTYPES[backend])
    torch.manual_seed(3)
    output = case.run(leaves, backend, dropout=0.375)[0]

    formula = leaves_of(case, torch.float64)
    eye = torch.eye(case.keys, dtype=torch.float64).expand(*formula["k"].shape[:2], -1, -1)
    weights = case.run(formula | {"v": eye}, "reference")[0]
    weights = weights * kept_weights(case, backend, 3, 0.375) / 0.625
    wanted = weights @ formula["v"].repeat_interleave(case.heads // case.groups, 1)
    assert_same_slopes(output, leaves, wanted, formula)


@pytest.mark.parametrize("keys", [33, 600])
@every_blockwise
def test_dropped_weights_drop_their_part_of_the_values_table(backend: str, keys: int):
    """TRAPS 23: the value term comes after dropout."""
    dtype, keys = DTYPES[backend], min(keys, MOST_KEYS[backend])
    case = replace(CASES["values"], batch=1, queries=33, keys=keys, table_window=(64, 64))
    named = case.inputs(dtype=dtype)
    named["v"] = torch.zeros_like(named["v"])
    named["values"] = torch.ones_like(named["values"])
    torch.manual_seed(0)
    output = case.run(named, backend, dropout=0.5)[0]
    eye = torch.eye(keys, dtype=dtype).expand(1, 2, -1, -1)
    zeros = torch.zeros(1, 129, keys, dtype=dtype)
    torch.manual_seed(0)
    weights = case.run(named | {"v": eye, "values": zeros}, backend, dropout=0.5)[0]
    assert_agrees(output, weights.sum(-1, keepdim=True).expand_as(output))


@pytest.mark.parametrize("rate", [1 - 1e-9, 0.99999, 1e-9])
@every_blockwise
def test_rates_at_the_ends_stay_finite(backend: str, rate: float):
    x = torch.ones(1, 1, 65, 4, requires_grad=True)
    output = attention(x, x, x, dropout=rate, backend=backend)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert output.isfinite().all()
    assert gradient.isfinite().all()


@every_blockwise
def test_the_seed_is_drawn_on_the_cpu_whatever_the_default_device(backend: str):
    x = torch.randn(1, 1, 65, 4)
    torch.manual_seed(1)
    expected = attention(x, x, x, dropout=0.5, backend=backend)
    torch.manual_seed(1)
    with torch.device("meta"):
        assert torch.equal(attention(x, x, x, dropout=0.5, backend=backend), expected)


@every_blockwise
def test_the_log_sum_exp_and_its_gradient_know_nothing_of_dropout(backend: str):
    case = CASES["per head"]
    results = []
    for rate in (0.0, 0.5):
        named = leaves_of(case, DTYPES[backend])
        lse = case.run(named, backend, dropout=rate)[1]
        lse.square().sum().backward()
        slopes = {name: named[name].grad for name in ("q", "k", "keys", "queries", "bias")}
        results.append(slopes | {"lse": lse.detach()})
    assert_agrees(*results)


@every_blockwise
def test_kept_weights_are_drawn_pair_by_pair(backend: str):
    """No pattern: not by row, key, head or batch entry, nor for neighbours of a block or a tile."""
    case = replace(CASES["plain"], queries=130, keys=520, width=4)
    kept = kept_weights(case, backend, 1, 0.5).float() - 0.5
    assert kept.mean().abs() < 6 * 0.5 / kept.numel() ** 0.5
    for axis in range(4):
        for step in (1, 2, 8, 16, 64, 256):
            if step < kept.shape[axis]:
                here = kept.narrow(axis, step, kept.shape[axis] - step)
                there = kept.narrow(axis, 0, kept.shape[axis] - step)
                together = (here * there).mean().abs() * 4
                assert together < 6 / here.numel() ** 0.5, (axis, step)
