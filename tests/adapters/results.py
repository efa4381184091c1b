"""A small model beside its adapted copy: outputs, losses, gradients, and when they are the same."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from relpos.adapters import adapt

from .models.case import Case, draw

__all__ = [
    "assert_equal", "drawn_pair", "gradients", "original_and_adapted", "results_of", "sizes",
]  # fmt: skip


def original_and_adapted(model: nn.Module) -> tuple[Any, Any]:
    """A model, and an adapted copy of it."""
    adapted = copy.deepcopy(model)
    assert adapt(adapted)
    return model, adapted


def gradients(case: Case, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """Output, loss and the gradients of both for every parameter."""
    with case.unrounded(model):
        output, loss = case.call(model, inputs)
        weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)
        total = (output * weights.to(output.dtype)).sum()
        model.zero_grad()
        (total if loss is None else total + loss).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    results = {"output": output.detach()} | ({} if loss is None else {"loss": loss.detach()})
    return results | {name: grad.clone() for name, grad in found.items()}


def assert_equal(
    ours: dict[str, Tensor],
    theirs: dict[str, Tensor],
    tolerance: float,
    exact: dict[str, Tensor] | None = None,
    *,
    cancelling: tuple[str, ...] = (),
) -> None:
    """Every tensor within `tolerance` of its size.

    Gradients with one of the names `cancelling` are sums that the original knows no better than it
    errs itself, which is allowed beside the tolerance.
    """
    assert ours.keys() == theirs.keys()
    exact = theirs if exact is None else exact
    for name, size in sizes(exact).items():
        expected = theirs[name]
        assert torch.isfinite(expected).all(), name
        allowed = tolerance * size
        if any(part in name for part in cancelling):
            allowed += float((expected - exact[name]).abs().max())
        assert float((ours[name] - expected).abs().max()) <= allowed, name


def sizes(exact: dict[str, Tensor]) -> dict[str, float]:
    """Of each tensor, the largest entry.

    What is zero in exact arithmetic, as the gradients of the keys' biases, is nothing but rounding:
    its size is the largest entry of all.
    """
    found = {name: float(x.abs().max()) for name, x in exact.items()}
    largest = max(found.values())
    return {name: size if size >= 1e-9 * largest else largest for name, size in found.items()}


def drawn_pair(model: nn.Module) -> tuple[Any, Any]:
    """A model with drawn parameters in float64, and an adapted copy of it."""
    torch.manual_seed(0)
    draw(model)
    return original_and_adapted(model.double().eval())


def results_of(model: nn.Module, given: dict[str, Any], output: str) -> dict[str, Any]:
    """An output and the gradients of it for every parameter, by name."""
    found = getattr(model(**given), output)
    total = (found * torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)).sum()
    total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"output": found.detach()} | gradients
