"""Tensors of integers that calls share."""

from __future__ import annotations

import pytest
import torch

from relpos import backends

pytestmark = pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"]))


def test_what_is_made_of_the_same_arguments_is_made_once():
    from relpos.ops.triton.table_chunks import window_chunks

    cpu = torch.device("cpu")
    first = window_chunks(-5, 11, 4, cpu)
    assert window_chunks(-5, 11, 4, cpu) is first
    assert window_chunks(-4, 11, 4, cpu) is not first
    assert first.tolist() == [[-4, 1, 4], [0, 5, 4], [4, 9, 1]]


@pytest.fixture
def on_a_gpu(monkeypatch) -> list[str]:
    """Tensors of the CPU stand for those of a GPU; what is done to them."""
    done: list[str] = []
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: done.append("pinned") or x.clone())
    monkeypatch.setattr(
        torch.Tensor, "to", lambda x, *given, **options: done.append("copied") or x.clone()
        if options.get("non_blocking") else to(x, *given, **options),
    )  # fmt: skip
    return done


@pytest.mark.no_typecheck
def test_each_call_has_a_copy_of_its_own_on_a_gpu(on_a_gpu, monkeypatch):
    from relpos.ops.triton.kept import kept

    made, cuda = [], torch.device("cuda")
    make = kept(lambda number, device: made.append(device.type) or torch.tensor([number]))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    first, second = make(3, cuda), make(3, cuda)
    assert first is not second
    assert first.tolist() == second.tolist() == [3]
    assert made == ["cpu"]
    assert on_a_gpu == ["pinned", "copied", "copied"]


@pytest.mark.no_typecheck
def test_nothing_is_kept_of_what_a_graph_captures(on_a_gpu, monkeypatch):
    from relpos.ops.triton.kept import kept

    made, cuda = [], torch.device("cuda")
    make = kept(lambda device: made.append(device.type) or torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    make(cuda), make(cuda)
    assert made == ["cuda", "cuda"]
    assert on_a_gpu == []
