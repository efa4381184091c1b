"""What `torch.utils.flop_counter` counts of the op, beside its own count of SDPA and of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import T5Config, T5EncoderModel

from relpos import (
    GridTerms,
    OffsetTable,
    Terms,
    attention,
    document_ids,
    register_flop_formulas,
)
from relpos.adapters import adapt
from tests.ops.backends import every_blockwise, native_alone

B, H, KV_HEADS, L, D, DV = 2, 4, 2, 24, 8, 16
# Of a product of each query with each key, for each number of a vector.
PAIRS = 2 * B * H * L * L
PLAIN = Terms()


@pytest.fixture(autouse=True)
def _formulas() -> None:
    register_flop_formulas()


def counted(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def forward_and_backward(
    terms: Terms | GridTerms = PLAIN, i: int = L, j: int = L, **settings: Any
) -> tuple[int, int]:
    """The count of a call all of whose inputs learn, and of its backward pass."""
    q, k, v = rows(B, H, i, D), rows(B, KV_HEADS, j, D), rows(B, KV_HEADS, j, DV)
    results: list[Tensor] = []
    forward = counted(lambda: results.append(attention(q, k, v, terms, **settings)))
    return forward, counted(lambda: results[0].sum().backward())


def rows(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def table(count: int, width: int, first: int = -2) -> OffsetTable:
    return OffsetTable(rows(1, count, width), first=first)


def test_without_formulas_torch_counts_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.utils.flop_counter.flop_registry", {})
    assert forward_and_backward(backend="tiled") == (0, 0)
    register_flop_formulas()
    assert forward_and_backward(backend="tiled") != (0, 0)


@every_blockwise
@pytest.mark.parametrize("causal", [False, True])
def test_plain_attention_counts_what_torch_counts_for_sdpa(backend: str, causal: bool):
    q, k, v = (B, H, L, D), (B, KV_HEADS, L, D), (B, KV_HEADS, L, DV)
    of_sdpa = sdpa_flop_count(q, k, v), sdpa_backward_flop_count((B, H, L, DV), q, k, v)
    assert forward_and_backward(causal=causal, backend=backend) == of_sdpa


@every_blockwise
def test_a_table_adds_the_products_with_its_rows(backend: str):
    plain = PAIRS * (D + DV), PAIRS * (3 * D + 2 * DV)
    assert forward_and_backward(backend=backend) == plain

    def added(terms: Terms) -> tuple[int, int]:
        forward, backward = forward_and_backward(terms, backend=backend)
        return forward - plain[0], backward - plain[1]

    for_each_query = 2 * B * H * L
    # Backward makes a product again, and one for each of the two factors that learn.
    keys = for_each_query * 5 * D
    assert added(Terms(keys=table(5, D))) == (keys, 3 * keys)
    assert added(Terms(queries=table(5, D))) == (keys, 3 * keys)
    values = for_each_query * 5 * DV
    assert added(Terms(values=table(5, DV))) == (values, 2 * values)
    narrow = for_each_query * 5 * 3
    assert added(Terms(keys=table(5, 3), q_rel=rows(B, H, L, 3))) == (narrow, 3 * narrow)
    assert added(Terms(bias=OffsetTable(rows(H, 5), first=-2))) == (0, 0)
    # Of more rows than keys a query meets as many as there are keys.
    every_key = for_each_query * L * D
    assert added(Terms(keys=table(2 * L, D, -L))) == (every_key, 3 * every_key)


def test_a_table_of_queries_is_for_each_key():
    plain, _ = forward_and_backward(i=3, j=40, backend="tiled")
    terms = Terms(queries=table(5, D), keys=table(6, D))
    found, _ = forward_and_backward(terms, i=3, j=40, backend="tiled")
    # A key meets the rows for 3 queries.
    assert found - plain == 2 * B * H * D * (40 * 3 + 3 * 6)


def test_backward_counts_what_learns():
    q, k, v = torch.randn(B, H, L, D), torch.randn(B, H, L, D), rows(B, H, L, DV)
    out = attention(q, k, v, backend="tiled")
    assert counted(out.sum().backward) == PAIRS * (D + DV)  # the scores again; of the values
    q.requires_grad_()
    out = attention(q, k, v.detach(), Terms(keys=OffsetTable(torch.randn(1, 5, D), -2)))
    per_query = 2 * B * H * L
    keys = PAIRS * 2 * D + per_query * 5 * 2 * D
    assert counted(out.sum().backward) == keys + PAIRS * DV  # the scores, and of q; of the weights
    terms = Terms(values=table(5, DV))
    out = attention(q.detach(), k, v.detach(), terms)
    assert counted(out.sum().backward) == PAIRS * D + per_query * 5 * DV


@every_blockwise
def test_a_window_counts_as_many_keys_as_it_is_wide(backend: str):
    def count(**settings: Any) -> int:
        return forward_and_backward(backend=backend, **settings)[0]

    per_key = 2 * B * H * L * (D + DV)
    assert count(window=(3, 4)) == 8 * per_key
    assert count(window=(3, None), causal=True) == 4 * per_key
    assert count(window=(3, None)) == count(window=(2 * L, 5)) == count() == L * per_key
    forward, _ = forward_and_backward(Terms(keys=table(9, D, -4)), window=(1, 1), backend=backend)
    assert forward == 3 * 2 * B * H * L * (2 * D + DV)


@every_blockwise
def test_documents_count_by_themselves(backend: str):
    documents = document_ids(torch.tensor([0, 5, 5, 20]), L)  # 5 and 15 tokens; 4 have none
    terms = Terms(keys=table(7, D))
    found, _ = forward_and_backward(terms, documents=documents, backend=backend)
    assert found == 2 * B * H * ((25 + 225) * (D + DV) + (5 * 5 + 15 * 7) * D)
    # Its last tokens, of a row with others in each entry of the batch.
    documents = torch.tensor([[0] * 20 + [1] * 4, [0] * 22 + [2] * 2])
    found, _ = forward_and_backward(i=3, documents=documents, query_start=21, backend=backend)
    assert found == 2 * H * (D + DV) * (3 * 4 + 1 * 22 + 2 * 2)
    of_queries = torch.tensor([[0, 2, 7]])
    settings = {"documents": documents, "query_documents": of_queries, "backend": backend}
    found, _ = forward_and_backward(i=3, **settings)
    assert found == 2 * H * (D + DV) * (20 + 22 + 2)
    settings |= {"documents": of_queries.repeat_interleave(8, 1), "query_documents": documents}
    found, _ = forward_and_backward(i=L, **settings)
    assert found == 2 * H * (D + DV) * (20 * 8 + 22 * 8 + 2 * 8)
    none = torch.randn(0, H, 3, D)
    of_none = documents[:0, :3]
    assert not counted(
        lambda: attention(none, none, none, documents=documents[:1, :3], query_documents=of_none)
    )


def test_sequences_of_a_nested_tensor_count_by_themselves():
    parts = [torch.randn(length, H, D) for length in (3, 8)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    assert counted(lambda: attention(x, x, x)) == 2 * H * 2 * D * (3 * 3 + 8 * 8)


@native_alone
def test_a_grid_adds_products_along_its_axes(backend: str):
    height, width, prefix = 4, 5, 1
    axes = (
        Terms(keys=table(9, D), queries=table(9, D), values=table(9, DV)),
        Terms(keys=table(9, 3), q_rel=rows(B, H, prefix + height * width, 3)),
    )
    length = prefix + height * width
    tokens = 2 * B * H * height * width
    pairs = 2 * B * H * length**2
    terms = GridTerms((height, width), axes, prefix=prefix)
    forward, backward = forward_and_backward(terms, length, length, backend=backend)
    first = tokens * height
    second = tokens * width * 3
    assert forward == pairs * (D + DV) + first * (2 * D + DV) + second
    assert backward == pairs * (3 * D + 2 * DV) + first * (2 * D * 3 + 2 * DV) + second * 3
    near = GridTerms((height, width), prefix=prefix)
    forward, _ = forward_and_backward(near, length, length, window=((1, 1), None), backend=backend)
    # The token before the grid sees all.
    of_one = prefix * length + height * width * (prefix + 3 * width)
    assert forward == 2 * B * H * of_one * (D + DV)


@native_alone
def test_pooled_queries_count_by_their_own_grid(backend: str):
    axes = (Terms(keys=table(7, D, -3), queries=table(7, D, -3)), Terms())
    terms = GridTerms((4, 8), axes, query_shape=(2, 4))
    forward, _ = forward_and_backward(terms, 8, 32, backend=backend)
    assert forward == 2 * B * H * (8 * 32 * (D + DV) + 8 * 4 * D + 32 * 2 * D)


def test_logits_of_axes_by_kernels_count():
    with FakeTensorMode():
        q = torch.empty(B, H, 21, D, dtype=torch.bfloat16, requires_grad=True)
        of_axes = [torch.empty(1, size * size, D, requires_grad=True) for size in (4, 5)]
        made = []

        def run() -> None:
            made.append(torch.ops.relpos.triton_axis_logits(q, of_axes, [4, 5], 1, 1.0))

        forward = counted(run)
        assert forward == 2 * B * H * 20 * (4 + 5) * D
        assert counted(made[0].sum().backward) == 2 * forward


@every_blockwise
def test_calls_without_memory_count(backend: str):
    with FakeTensorMode():
        found = forward_and_backward(Terms(keys=table(5, D)), backend=backend)
    assert found == forward_and_backward(Terms(keys=table(5, D)), backend=backend)
    documents = document_ids(torch.tensor([0, L]), L).to("meta")
    q = torch.empty(B, H, L, D, device="meta")
    plain = counted(lambda: attention(q, q, q, documents=documents, backend="tiled"))
    assert plain == PAIRS * 2 * D
    documents = document_ids(torch.tensor([0, 5, L]), L)
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(B, H, L, D)
        plain = counted(lambda: attention(q, q, q, documents=documents, backend="tiled"))
    assert plain == PAIRS * 2 * D


def test_an_adapted_t5_counts_what_it_did():
    config = T5Config(d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=2, vocab_size=50)
    config._attn_implementation = "eager"
    model = T5EncoderModel(config).eval()
    tokens = torch.randint(50, (2, 33))

    def forward_and_both() -> list[int]:
        return [
            counted(lambda: model(tokens)),
            counted(lambda: model(tokens).last_hidden_state.sum().backward()),
        ]

    forward, both = forward_and_both()
    adapt(model)
    scores = config.num_layers * 2 * 2 * 4 * 33 * 33 * 8
    # Backward makes the scores again, which eager attention keeps.
    assert forward_and_both() == [forward, both + scores]
