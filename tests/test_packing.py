"""Several documents in one row: each as if it were alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relpos import OffsetTable, ShapeError, Terms, attention, document_ids
from relpos.ops.tiled.documents import keys_of_documents
from tests.factories import normal, qkv
from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, every_backend


def test_ids_are_counted_from_cumulative_lengths():
    assert document_ids(torch.tensor([0, 3, 3, 4]), 6).tolist() == [[0, 0, 0, 2, -1, -1]]
    assert document_ids(torch.tensor([0], dtype=torch.int32), 2).tolist() == [[-1, -1]]


def test_lengths_need_not_lie_together_in_memory():
    """Of such torch warns once, in `searchsorted`."""
    assert document_ids(torch.tensor([0, 9, 3, 9, 4, 9])[::2], 5).tolist() == [[0, 0, 0, 1, -1]]


def test_small_integers_do_not_wrap():
    ids = document_ids(torch.tensor([0, 3], dtype=torch.uint8), 300)
    assert ids.tolist() == [[0] * 3 + [-1] * 297]


@pytest.mark.parametrize("wrong", [[2, 3], [0, 5, 3], [0, 7], []])
def test_lengths_that_do_not_add_up_are_refused(wrong):
    with pytest.raises(ValueError, match="cumulative must begin with 0, never fall, and end"):
        document_ids(torch.tensor(wrong, dtype=torch.int64), 6)


def test_blocks_read_the_keys_of_their_documents_alone():
    documents = torch.tensor([[0, 0, 1, 1, 1, -1], [0, 1, 1, 1, 2, 2]])
    visible_keys = keys_of_documents(documents, documents)
    each = [visible_keys(i, i + 1) for i in range(6)]
    assert each == [(0, 2), (0, 4), (1, 5), (1, 5), (2, 6), (4, 6)]
    assert visible_keys(0, 2) == (0, 4)
    assert keys_of_documents(documents[:1], documents[:1, 2:])(2, 4) == (2, 5)
    assert keys_of_documents(documents[:1], documents[:1])(5, 6) == (0, 0)
    assert keys_of_documents(documents[:1], torch.tensor([[1, 7]]))(1, 2) == (0, 0)


@every_backend
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), causal=st.booleans(),
    padding=st.integers(0, 5),
)  # fmt: skip
@settings(max_examples=30, deadline=None, derandomize=True)
def test_documents_of_a_row_are_as_if_alone(backend, lengths, causal, padding):
    cumulative = torch.tensor([0, *lengths]).cumsum(0)
    tokens = int(cumulative[-1]) + padding
    dtype = DTYPES[backend]
    q, k, v = (x.to(dtype) for x in qkv(tokens, tokens, h=4, g=2))
    terms = Terms(
        keys=OffsetTable(normal(4, 9, 5, seed=7), -6),
        queries=OffsetTable(normal(1, 50, 5, seed=8), -25),
        values=OffsetTable(normal(1, 5, 5, seed=9), -2, "zero"),
    ).map(lambda rows: rows.to(dtype))
    documents = document_ids(cumulative, tokens)
    packed = attention(q, k, v, terms, causal=causal, documents=documents, backend=backend)
    for a, b in pairwise(cumulative.tolist()):
        one = [x[:, :, a:b] for x in (q, k, v)]
        alone = attention(*one, terms, causal=causal, backend=backend)
        assert_agrees(packed[:, :, a:b], alone)
    assert not packed[:, :, tokens - padding :].any()


@every_backend
def test_queries_of_another_packed_row_see_the_keys_of_their_document(backend):
    q, k, v = (x.to(DTYPES[backend]) for x in qkv(14, 30))
    # The third document has no query, and the last query no key.
    of_queries = document_ids(torch.tensor([0, 9, 12, 12, 14]), 14)
    of_keys = document_ids(torch.tensor([0, 4, 20, 30]), 30)
    packed = attention(
        q, k, v, documents=of_keys, query_documents=of_queries.int(), query_start=40,
        backend=backend,
    )  # fmt: skip
    for queries, keys in ((slice(0, 9), slice(0, 4)), (slice(9, 12), slice(4, 20))):
        alone = attention(q[:, :, queries], k[:, :, keys], v[:, :, keys], backend=backend)
        assert_agrees(packed[:, :, queries], alone)
    assert not packed[:, :, 12:].any()


@every_backend
def test_the_last_queries_of_packed_keys_find_their_document(backend):
    q, k, v = (x.to(DTYPES[backend]) for x in qkv(30, 30))
    documents = document_ids(torch.tensor([0, 11, 30]), 30)
    whole = attention(q, k, v, documents=documents, backend=backend)
    last = attention(q[:, :, 5:], k, v, documents=documents, backend=backend)
    assert_agrees(last, whole[:, :, 5:])


@every_backend
def test_each_row_of_the_batch_has_documents_of_its_own(backend):
    q, k, v = (x.to(DTYPES[backend]) for x in qkv(12, 12))
    documents = torch.stack([torch.arange(12) // 4, torch.arange(12) // 6])
    both = attention(q, k, v, documents=documents, backend=backend)
    for n in range(2):
        one = [x[n : n + 1] for x in (q, k, v)]
        alone = attention(*one, documents=documents[n : n + 1], backend=backend)
        assert_agrees(both[n : n + 1], alone)


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
    with pytest.raises(ValueError, match="query_documents must come with documents"):
        attention(q, k, v, query_documents=torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"query_documents must be \(b, i\)"):
        attention(
            q, k, v, documents=torch.zeros(1, 6, dtype=torch.int64),
            query_documents=torch.zeros(1, 6, dtype=torch.int64),
        )  # fmt: skip
    with pytest.raises(ValueError, match="query_start must place the queries among the 6"):
        attention(q, k, v, documents=torch.zeros(1, 6, dtype=torch.int64), query_start=3)
    with pytest.raises(ShapeError, match="document_ids: cumulative must be integers"):
        document_ids(torch.tensor([0.0, 2.0]), 2)
    with pytest.raises(ValueError, match="document_ids: length must be an integer >= 1"):
        document_ids(torch.tensor([0, 2]), 0)
