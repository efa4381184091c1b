"""`torch.jit.trace`: a trace is right, or refuses sizes that it is not for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from relpos import OffsetTable, Terms, attention, chunk_ranges
from relpos.adapters import NeighborhoodAttention2D, adapt
from relpos.layers import GridAttention, MultiheadAttention
from relpos.positions import Grid, Shaw
from tests.adapters.models import BY_NAME
from tests.ecosystem.schemes import inputs, made
from tests.factories import normal

pytestmark = [
    pytest.mark.no_typecheck,
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    # Tracing reads every attribute of a model.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]

REFUSAL = "torch.jit.trace: this trace is for "


class Called(nn.Module):
    """A module as one of tensors."""

    def __init__(self, module: Any, call: Any) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *given: Tensor) -> Tensor:
        return self.call(self.module, *given)


def traced(module: nn.Module, *given: Tensor) -> Any:
    return torch.jit.trace(module, given, check_trace=False)


def test_tables_of_fixed_offsets_serve_all_lengths():
    layer = Called(
        MultiheadAttention(16, 2, position=Shaw(8, 3, 2)).eval(),
        lambda layer, x: layer(x, x, x, need_weights=False, is_causal=True)[0],
    )
    trace = traced(layer, torch.randn(1, 9, 16))
    for x in (torch.randn(1, 9, 16), torch.randn(3, 14, 16)):
        assert_close(trace(x), layer(x))


def test_a_table_as_long_as_the_input_is_for_that_length():
    def all_offsets(_: None, x: Tensor) -> Tensor:
        rows = x.new_ones(2, 2 * x.shape[2] - 1)
        return attention(x, x, x, Terms(bias=OffsetTable(rows, 1 - x.shape[2])))

    x = normal(1, 2, 9, 8).float()
    trace = traced(Called(None, all_offsets), x)
    assert_close(trace(2 * x), all_offsets(None, 2 * x))
    with pytest.raises(RuntimeError, match=REFUSAL):
        trace(normal(1, 2, 7, 8).float())


ROWS = normal(2, 5, 8, seed=3).float()


@pytest.mark.parametrize("backend", ["auto", "tiled"])
@pytest.mark.parametrize(
    "options",
    [
        {"causal": True}, {"window": (3, 0)}, {"terms": Terms(keys=OffsetTable(ROWS, -2))},
        {"terms": Terms(keys=OffsetTable(ROWS, -2)), "causal": True},
    ],
)  # fmt: skip
def test_queries_among_more_keys_stay_where_they_were(options: dict, backend: str):
    def last(_: None, q: Tensor, k: Tensor) -> Tensor:
        return attention(q, k, k, **options, backend=backend)

    q, k, longer = (torch.randn(1, 2, n, 8) for n in (3, 9, 14))
    trace = traced(Called(None, last), q, k)
    for others in ((q, k), (torch.randn(2, 2, 8, 8), torch.randn(2, 2, 14, 8))):
        assert_close(trace(*others), last(None, *others))
    with pytest.raises(RuntimeError, match=REFUSAL + "6 more keys than queries"):
        trace(q, longer)


def test_queries_that_have_a_number_of_their_own_go_with_any_keys():
    def first(_: None, q: Tensor, k: Tensor) -> Tensor:
        return attention(q, k, k, Terms(keys=OffsetTable(ROWS, -2)), query_start=0)

    trace = traced(Called(None, first), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 9, 8))
    given = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 4, 8)
    assert_close(trace(*given), first(None, *given))


def test_without_an_order_any_lengths_do():
    def plain(_: None, q: Tensor, k: Tensor) -> Tensor:
        return attention(q, k, k)

    trace = traced(Called(None, plain), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 9, 8))
    given = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 7, 8)
    assert_close(trace(*given), plain(None, *given))


@pytest.mark.parametrize(
    "options_of",
    [
        lambda q, k: {"query_start": k.shape[2] - q.shape[2], "causal": True},
        lambda q, _: {"window": (q.shape[2] // 2, 0)},
        lambda q, _: {"terms": Terms(keys=OffsetTable(ROWS, -(q.shape[2] // 2)))},
        lambda q, _: {"key_ranges": chunk_ranges(q.shape[2], 2, left_chunks=1)},
    ],
    ids=["query_start", "window", "first offset", "chunks"],
)
def test_what_is_made_of_a_length_is_for_that_length(options_of: Any):
    def call(_: None, q: Tensor) -> Tensor:
        return attention(q, q, q, **options_of(q, q))

    q = torch.randn(1, 2, 6, 8)
    trace = traced(Called(None, call), q)
    assert_close(trace(2 * q), call(None, 2 * q))
    with pytest.raises(RuntimeError, match=REFUSAL + "6 queries and 6 keys"):
        trace(torch.randn(1, 2, 9, 8))


@pytest.mark.parametrize("name", ["T5Bias", "Alibi", "Kerple", "TransformerXL", "Rotary"])
def test_schemes_whose_offsets_follow_from_the_length_are_refused(name: str):
    with pytest.raises(AssertionError, match=r"expected .*numpy\.integer"):
        traced(made(name), *inputs(name, 9))


def test_a_map_is_for_its_size_and_learns():
    layer, x = GridAttention(16, 2, position=Grid(8, (5, 7))), torch.randn(2, 16, 5, 7)
    trace = traced(layer, x)
    leaves = [*layer.parameters()]
    want = torch.autograd.grad(layer(x).square().sum(), leaves)
    for found, one in zip(torch.autograd.grad(trace(x).square().sum(), leaves), want, strict=True):
        assert_close(found, one)
    for other in ((5, 9), (7, 5)):  # of as many tokens, too
        with pytest.raises(RuntimeError, match=REFUSAL):
            trace(torch.randn(2, 16, *other))


def test_a_map_without_positions_is_for_every_size():
    layer = GridAttention(16, 2)
    trace, x = traced(layer, torch.randn(2, 16, 5, 7)), torch.randn(2, 16, 4, 9)
    assert_close(trace(x), layer(x))


@pytest.mark.parametrize("dilation", [1, 2])
def test_neighbourhoods_are_for_maps_of_their_size(dilation: int):
    layer = NeighborhoodAttention2D(16, 2, kernel_size=3, dilation=dilation)
    trace = traced(layer, torch.randn(2, 6, 4, 16))
    x = torch.randn(3, 6, 4, 16)
    assert_close(trace(x), layer(x))
    with pytest.raises(RuntimeError, match=REFUSAL + r"maps of \(6, 4\) tokens"):
        trace(torch.randn(2, 4, 6, 16))


@pytest.mark.parametrize("name", ["parakeet", "wav2vec2_conformer", "espnet", "vitdet", "t5"])
def test_an_adapted_model_is_right_or_refuses(name: str):
    case = BY_NAME[name]
    model = case.model()
    adapt(model)
    given, others = (case.inputs(2, n, "none") for n in (case.lengths[0], case.lengths[-1]))
    names = [name for name, x in given.items() if isinstance(x, Tensor)]
    called = Called(model, lambda m, *xs: case.call(m, dict(zip(names, xs, strict=True)))[0])
    with torch.no_grad():
        trace = traced(called.eval(), *(given[name] for name in names))
        assert_close(trace(*(given[n] for n in names)), called(*(given[n] for n in names)))
        other = [others[name] for name in names]
        if name == "t5":
            assert_close(trace(*other), called(*other))
            return
        with pytest.raises(RuntimeError, match=REFUSAL):
            trace(*other)
