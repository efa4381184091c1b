"""Tables whose memory was freed are refused, not read and not taken for none."""

from __future__ import annotations

import pytest
import torch

from relpos import OffsetTable, Terms, attention
from tests.ops.backends import every_cpu_blockwise


def freed(offset: int) -> tuple[torch.Tensor, Terms]:
    """A call whose table begins so many numbers after memory that is no longer there."""
    memory = torch.randn(offset + 5 * 16)
    terms = Terms(keys=OffsetTable(memory[offset:].view(1, 5, 16), first=-2))
    memory.untyped_storage().resize_(0)
    return torch.randn(1, 2, 9, 16), terms


@pytest.mark.parametrize("offset", [0, 4])
@every_cpu_blockwise
def test_a_table_without_its_memory_is_named(backend, offset):
    q, terms = freed(offset)
    with pytest.raises(RuntimeError, match=f"{backend}: every t.* must have its memory, got one"):
        attention(q, q, q, terms, backend=backend)


@every_cpu_blockwise
def test_what_has_no_numbers_needs_no_memory(backend):
    q, rows = torch.empty(0, 2, 9, 16), torch.empty(1, 5, 16)
    terms = Terms(keys=OffsetTable(rows, first=-2))
    assert attention(q, q, q, terms, backend=backend).shape == q.shape
