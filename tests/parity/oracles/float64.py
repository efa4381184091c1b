"""Modules that take their softmax in float32, whatever their input is, made to stay in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["float64_softmax"]


@contextmanager
def float64_softmax() -> Iterator[None]:
    """A softmax of float64 scores is in float64, also where float32 is asked for.

    They ask by `scores.float()` or by `softmax(scores, dtype=torch.float32)`. Nothing else is
    changed, so that a comparison is of their formula and not of its rounding.
    """
    softmax, to_float32 = functional.softmax, Tensor.float

    def in_dtype_of_scores(
        scores: Tensor, dim: int | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        return softmax(scores, dim, dtype=None if scores.dtype == torch.float64 else dtype)

    def unless_float64(x: Tensor) -> Tensor:
        return x if x.dtype == torch.float64 else to_float32(x)

    with (
        patch.object(functional, "softmax", in_dtype_of_scores),
        patch.object(Tensor, "float", unless_float64),
    ):
        yield
