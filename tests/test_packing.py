"""Several documents in one row: each as if it were alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relpos import OffsetTable, ShapeError, Terms, attention, document_ids

from .attention.test_meaning import BACKENDS
from .factories import normal, qkv


def test_ids_are_counted_from_cumulative_lengths():
    assert document_ids(torch.tensor([0, 3, 3, 4]), 6).tolist() == [[0, 0, 0, 2, -1, -1]]
    assert document_ids(torch.tensor([0], dtype=torch.int32), 2).tolist() == [[-1, -1]]


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), causal=st.booleans(),
    padding=st.integers(0, 5),
)  # fmt: skip
@settings(max_examples=30, deadline=None, derandomize=True)
def test_documents_of_a_row_are_as_if_alone(backend, lengths, causal, padding):
    cumulative = torch.tensor([0, *lengths]).cumsum(0)
    tokens = int(cumulative[-1]) + padding
    q, k, v = qkv(tokens, tokens, h=4, g=2)
    terms = Terms(
        keys=OffsetTable(normal(4, 9, 5, seed=7), -6),
        queries=OffsetTable(normal(1, 50, 5, seed=8), -25),
        values=OffsetTable(normal(1, 5, 5, seed=9), -2, "zero"),
    )
    documents = document_ids(cumulative, tokens)
    packed = attention(q, k, v, terms, causal=causal, documents=documents, backend=backend)
    for a, b in pairwise(cumulative.tolist()):
        one = [x[:, :, a:b] for x in (q, k, v)]
        alone = attention(*one, terms, causal=causal, backend=backend)
        torch.testing.assert_close(packed[:, :, a:b], alone, rtol=0, atol=1e-12)
    assert not packed[:, :, tokens - padding :].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_queries_of_packed_keys_find_their_document(backend):
    q, k, v = qkv(30, 30)
    documents = document_ids(torch.tensor([0, 11, 30]), 30)
    whole = attention(q, k, v, documents=documents, backend=backend)
    last = attention(q[:, :, 5:], k, v, documents=documents, backend=backend)
    torch.testing.assert_close(last, whole[:, :, 5:])


def test_each_row_of_the_batch_has_documents_of_its_own():
    q, k, v = qkv(12, 12)
    documents = torch.stack([torch.arange(12) // 4, torch.arange(12) // 6])
    both = attention(q, k, v, documents=documents)
    for n in range(2):
        one = [x[n : n + 1] for x in (q, k, v)]
        alone = attention(*one, documents=documents[n : n + 1])
        torch.testing.assert_close(both[n : n + 1], alone)


@pytest.mark.no_typecheck
def test_wrong_documents_are_named():
    q, k, v = qkv(4, 6)
    for documents, message in (
        (
            torch.zeros(2, 5, dtype=torch.int64),
            r"documents must be \(b, j\) with b in \(1, 2\)",
        ),
        (torch.zeros(1, 6), "documents must be integers, got torch.float32"),
        (torch.zeros(1, 6, dtype=torch.int64, device="meta"), "documents must be on cpu"),
    ):
        with pytest.raises(ShapeError, match=message):
            attention(q, k, v, documents=documents)
    with pytest.raises(TypeError, match="documents must be a tensor, got list"):
        attention(q, k, v, documents=[0] * 6)
    with pytest.raises(ValueError, match="query_start must place the queries among the 6"):
        attention(q, k, v, documents=torch.zeros(1, 6, dtype=torch.int64), query_start=3)
    with pytest.raises(ShapeError, match="document_ids: cumulative must be integers"):
        document_ids(torch.tensor([0.0, 2.0]), 2)
    with pytest.raises(ValueError, match="document_ids: length must be an integer >= 1"):
        document_ids(torch.tensor([0, 2]), 0)
