"""The two ways to compare numbers, neither with a tolerance to set."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

# In a sum of a few hundred numbers each may be rounded the same way.
ULPS = 512

Results = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def cast(named: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The floating tensors of `named` in `dtype`."""
    return {n: x.to(dtype) if x.is_floating_point() else x for n, x in named.items()}


def arrays_of(named: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The tensors of `named` as the NumPy definition takes them, in float64."""
    return {n: x.detach().numpy() for n, x in cast(named, torch.float64).items()}


def assert_agrees(actual: Results, expected: Results) -> None:
    """`|actual - expected| <= 512 eps max(1, |expected|)`, in the largest element of each tensor.

    The inputs are of size 1, so that what is 0 in exact numbers may be a few eps.

    Args:
        actual: results in float64 or float32, whose eps counts; half precision has its budget.
        expected: of the same names and shapes, in the same dtype or in float64.
    """
    actual, expected = _by_name(actual), _by_name(expected)
    assert actual.keys() == expected.keys()
    for name, found in actual.items():
        wanted = expected[name]
        assert found.dtype in {torch.float64, torch.float32}, name
        assert wanted.dtype in {torch.float64, found.dtype}, name
        finite = wanted[wanted.isfinite()].abs()
        largest = max(1.0, finite.max().item()) if finite.numel() else 1.0
        bound = ULPS * torch.finfo(found.dtype).eps * largest
        torch.testing.assert_close(
            found, wanted, rtol=0, atol=bound, check_dtype=False, msg=lambda m, n=name: f"{n}: {m}"
        )


def _by_name(results: Results) -> Mapping[str, Tensor]:
    if isinstance(results, Tensor):
        results = (results,)
    if isinstance(results, Mapping):
        return results
    return {str(number): tensor for number, tensor in enumerate(results)}


def assert_within_budget(
    actual: Tensor, reference: Tensor, exact: Tensor, *, scale: float = 0.0
) -> None:
    """`|actual - exact| <= 2 (|reference - exact| + eps |exact|)`, in the largest element.

    One draw may flatter the reference: several are stacked to one tensor.

    Args:
        actual: a backend's results in some dtype.
        reference: the reference backend's, in the same dtype.
        exact: in float64, from the same (rounded) inputs.
        scale: of what was subtracted to get it, if that is larger than `exact`.
    """
    assert actual.dtype == reference.dtype
    assert actual.shape == reference.shape == exact.shape
    finite = exact.isfinite()
    assert torch.equal(actual.isfinite(), finite)
    if not finite.any():
        return

    def size(x: Tensor) -> float:
        return x[finite].abs().max().item()

    error = size(actual.double() - exact)
    rounding = torch.finfo(actual.dtype).eps * max(size(exact), scale)
    budget = 2 * (size(reference.double() - exact) + rounding)
    assert error <= budget, f"error {error:.3e} over the budget {budget:.3e}"
