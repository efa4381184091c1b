"""Which backend "auto" takes: the fastest of those that are willing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relpos import OffsetTable, Terms
from relpos.attention.dispatch import SMALL, choose
from relpos.attention.inputs import prepare

from .backends import native_alone


def chosen(q: Tensor, k: Tensor, terms: Terms | None = None, mask: Tensor | None = None) -> str:
    """Its name."""
    inputs = prepare(
        "attention", q, k, k, terms or Terms(), mask, None, causal=False, dropout=0.0, scale=None,
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


@pytest.mark.parametrize("wants", ["q", "k", "table", "mask", "nothing"])
@pytest.mark.parametrize("keys", [16, 1024, 1025])
def test_without_native_small_calls_in_training_take_the_reference(keys: int, wants: str):
    named = {
        "q": torch.randn(2, 2, 8, 4), "k": torch.randn(2, 2, keys, 4),
        "table": torch.randn(1, 3, 4), "mask": torch.randn(8, keys),
    }  # fmt: skip
    named = {name: x.double().requires_grad_(name == wants) for name, x in named.items()}
    terms = Terms(keys=OffsetTable(named["table"], -1))
    small = wants != "nothing" and 2 * 2 * 8 * keys <= SMALL
    name = "reference" if small else "tiled"
    assert chosen(named["q"], named["k"], terms, named["mask"]) == name
    with torch.no_grad():
        assert chosen(named["q"], named["k"], terms, named["mask"]) == "tiled"
