"""Which backend "auto" takes: the fastest of those that are willing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relpos import Terms
from relpos.attention.dispatch import choose
from relpos.attention.inputs import prepare

from .backends import native_alone


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
def test_native_is_taken_wherever_it_is_willing(
    backend: str, dtype: torch.dtype, wants_gradients: bool
):
    for queries, keys in ((1, 9), (16, 16), (300, 400)):
        q = torch.randn(1, 2, queries, 8, dtype=dtype, requires_grad=wants_gradients)
        k = torch.randn(1, 2, keys, 8, dtype=dtype)
        assert chosen(q, k) == backend


@pytest.mark.parametrize(
    ("keys", "wants_gradients", "name"),
    [
        (16, True, "reference"),
        (1024, True, "reference"),
        (1025, True, "tiled"),
        (16, False, "tiled"),
    ],
)
def test_without_native_small_calls_in_training_take_the_reference(
    keys: int, wants_gradients: bool, name: str
):
    q = torch.randn(2, 2, 8, 4, dtype=torch.float64)
    k = torch.randn(2, 2, keys, 4, dtype=torch.float64, requires_grad=wants_gradients)
    assert chosen(q, k) == name
    with torch.no_grad():
        assert chosen(q, k) == "tiled"
