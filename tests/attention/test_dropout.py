"""Dropout: drawn again in backward, never stored, right in expectation and in gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from relpos import attention, attention_weights

from .cases import CASES
from .grid_cases import GRID_CASES


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_a_seed_fixes_what_is_dropped(backend: str):
    case = CASES["per head"]
    named = case.inputs()

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return case.run(named, backend, dropout=0.5)[0]

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    assert not torch.equal(run(1), case.run(named, backend)[0])


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("name", ["per head", "causal"])
def test_the_mean_over_many_draws_is_the_output_without(backend: str, name: str):
    case = replace(CASES[name], batch=1)
    named = case.inputs()
    many = named | {x: named[x].expand(2000, -1, -1, -1) for x in "qkv"}
    torch.manual_seed(0)
    outputs = case.run(many, backend, dropout=0.3)[0]
    error = outputs.mean(0) - case.run(named, backend)[0][0]
    expected = outputs.std(0) / 2000**0.5
    assert ((error.abs() < 6 * expected) | (error.abs() < 1e-12)).all()


def test_the_share_that_is_kept():
    q = torch.zeros(4, 4, 257, 8)
    eye = torch.eye(257).expand(4, 4, -1, -1)
    torch.manual_seed(0)
    weights = attention(q, q, eye, dropout=0.25, backend="tiled")
    assert abs((weights > 0).float().mean().item() - 0.75) < 0.003
    torch.testing.assert_close(weights.max(), torch.tensor(1 / 257 / 0.75))


def kept_weights(case, named: dict[str, torch.Tensor], seed: int, rate: float) -> torch.Tensor:
    """Which weights `tiled` keeps: with the identity as values, those that are not zero."""
    keys = named["k"].shape[2]
    eye = torch.eye(keys, dtype=torch.float64).expand(*named["k"].shape[:2], -1, -1)
    without = {name: x for name, x in named.items() if not name.startswith("values")}
    terms = " ".join(part for part in case.terms.split() if part != "values")
    torch.manual_seed(seed)
    return replace(case, terms=terms).run(without | {"v": eye}, "tiled", dropout=rate)[0] != 0


@pytest.mark.parametrize("name", ["prefix", "two before", "pooled, between rows"])
def test_values_of_a_grid_come_after_dropout(name: str):
    """TRAPS 24: the kept weights alone reach the tables of the values, and their gradients."""
    case = replace(GRID_CASES[name], terms="keys values")
    named = case.inputs()
    kept = kept_weights(case, named, 3, 0.5)
    results = {}
    for which in ("tiled", "formula"):
        leaves = {n: x.detach().clone().requires_grad_() for n, x in named.items()}
        if which == "tiled":
            torch.manual_seed(3)
            output = case.run(leaves, "tiled", dropout=0.5)[0]
        else:
            # Values are linear in the weights: those of each pair, from one key seen at a time.
            weights = attention_weights(leaves["q"], leaves["k"], case.terms_of(leaves))
            weights = weights * kept * 2
            output = torch.zeros(*weights.shape[:3], case.value_width, dtype=torch.float64)
            for key in range(weights.shape[3]):
                alone = torch.arange(weights.shape[3]) == key
                seen = case.run(leaves, "reference", mask=alone)[0]
                output = output + weights[..., key, None] * seen
        output.square().sum().backward()
        results[which] = {n: x.grad for n, x in leaves.items()} | {"output": output.detach()}
    torch.testing.assert_close(results["tiled"], results["formula"])


@pytest.mark.parametrize("name", ["per head", "several row blocks, causal", "grouped"])
def test_gradients_belong_to_the_weights_that_were_kept(name: str):
    """Against the formula with the kept weights, known from the forward pass."""
    case = replace(CASES[name], terms="keys queries bias")
    named = case.inputs()
    keys = named["k"].shape[2]
    eye = torch.eye(keys, dtype=torch.float64).expand(*named["k"].shape[:2], -1, -1)
    kept = kept_weights(case, named, 3, 0.375)

    grads = {}
    for which in ("tiled", "formula"):
        leaves = {n: x.detach().clone().requires_grad_() for n, x in named.items()}
        if which == "tiled":
            torch.manual_seed(3)
            output = case.run(leaves, "tiled", dropout=0.375)[0]
        else:
            weights = case.run(leaves | {"v": eye}, "reference")[0]
            repeat = leaves["q"].shape[1] // leaves["v"].shape[1]
            output = (weights * kept / 0.625) @ leaves["v"].repeat_interleave(repeat, 1)
        output.square().sum().backward()
        grads[which] = {n: x.grad for n, x in leaves.items()}
    torch.testing.assert_close(grads["tiled"], grads["formula"])


def test_dropped_weights_drop_their_part_of_the_values_table():
    """TRAPS 24: the value term comes after dropout."""
    case = replace(CASES["values"], batch=1, window=(64, 64))
    named = case.inputs()
    named["v"] = torch.zeros_like(named["v"])
    named["values"] = torch.ones_like(named["values"])
    torch.manual_seed(0)
    output = case.run(named, "tiled", dropout=0.5)[0]
    eye = torch.eye(33, dtype=torch.float64).expand(1, 2, -1, -1)
    torch.manual_seed(0)
    weights = case.run(named | {"v": eye, "values": torch.zeros(1, 129, 33).double()},
                       "tiled", dropout=0.5)[0]  # fmt: skip
    torch.testing.assert_close(output, weights.sum(-1, keepdim=True).expand_as(output))


@pytest.mark.parametrize("rate", [1 - 1e-9, 0.99999, 1e-9])
def test_rates_at_the_ends_stay_finite(rate: float):
    x = torch.ones(1, 1, 65, 4)
    assert attention(x, x, x, dropout=rate, backend="tiled").isfinite().all()


def test_the_seed_is_drawn_on_the_cpu_whatever_the_default_device():
    x = torch.randn(1, 1, 65, 4)
    torch.manual_seed(1)
    expected = attention(x, x, x, dropout=0.5, backend="tiled")
    torch.manual_seed(1)
    with torch.device("meta"):
        assert torch.equal(attention(x, x, x, dropout=0.5, backend="tiled"), expected)


def test_the_log_sum_exp_and_its_gradient_know_nothing_of_dropout():
    case = CASES["per head"]
    grads = []
    for rate in (0.0, 0.5):
        named = {name: x.requires_grad_() for name, x in case.inputs().items()}
        lse = case.run(named, "tiled", dropout=rate)[1]
        lse.square().sum().backward()
        grads.append([lse.detach(), named["q"].grad, named["keys"].grad, named["bias"].grad])
    torch.testing.assert_close(*grads)
