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


def test_nothing_is_kept_of_what_a_graph_captures(monkeypatch):
    from relpos.ops.triton.kept import kept

    made = []
    make = kept(lambda device: made.append(device) or len(made))
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert (make(cuda), make(cuda)) == (1, 2)
