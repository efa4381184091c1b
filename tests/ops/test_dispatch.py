"""Which backend "auto" takes: the fastest of those that support the inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relpos import Terms
from relpos.ops.dispatch import choose
from relpos.ops.inputs import prepare
from tests.ops.backends import native_alone


def chosen(q: Tensor, k: Tensor) -> str:
    """Its name."""
    inputs = prepare(
        "attention", q, k, k, Terms(), None, None, causal=False, dropout=0.0, scale=None,
        query_start=None, return_lse=False,
    )  # fmt: skip
    return choose("auto", inputs).__name__.rpartition(".")[2]  # type: ignore[attr-defined]


@native_alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wants_gradients", [False, True])
def test_native_is_taken_wherever_it_supports_the_inputs(
    backend: str, dtype: torch.dtype, wants_gradients: bool
):
    for queries, keys in ((1, 9), (16, 16), (300, 400)):
        q = torch.randn(1, 2, queries, 8, dtype=dtype, requires_grad=wants_gradients)
        k = torch.randn(1, 2, keys, 8, dtype=dtype)
        assert chosen(q, k) == backend


@pytest.mark.parametrize("wants_gradients", [False, True])
def test_without_native_tiled_is_taken_whether_or_not_gradients_are_wanted(wants_gradients: bool):
    """Checkpointing calls twice, the first time without: it is to get the same dropout."""
    for length in (1, 16, 300):
        q = torch.randn(1, 2, length, 8, dtype=torch.float64, requires_grad=wants_gradients)
        assert chosen(q, q) == "tiled"
