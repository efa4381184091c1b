"""The op inside torch: opcheck, compile, checkpointing, devices without data."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from relpos import BackendError, OffsetTable, Terms, attention
from relpos.attention.tiled.ops import tiled_forward
from relpos.layers import MultiheadAttention
from relpos.models import DecoderConfig, DecoderLM
from relpos.positions import Huang

from .cases import CASES


def arguments(dropout: float = 0.0, need_lse: bool = True) -> tuple:
    torch.manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64).requires_grad_()

    return (
        leaf(2, 4, 5, 3), leaf(2, 2, 7, 3), leaf(2, 2, 7, 6),
        leaf(4, 5, 2), leaf(1, 4, 3), leaf(1, 3), leaf(1, 5, 6), leaf(2, 4, 5, 2),
        leaf(2, 1, 5, 7), None, None, None, torch.tensor([[0, 0, 0, 1, 1, 1, -1]]),
        torch.tensor(7), [-2, -1, -1, -3], [True, True, False, True], [], [], 0, True, 0.5, 2,
        dropout, need_lse, False,
    )  # fmt: skip


def grid_arguments() -> tuple:
    """A grid of 2 x 3 keys with a class token, and one of 1 x 2 queries with one."""
    torch.manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64).requires_grad_()

    return (
        leaf(2, 4, 3, 3), leaf(2, 2, 7, 3), leaf(2, 2, 7, 6), *[None] * 6,
        leaf(1, 4, 3, 5), leaf(2, 4, 7, 3), None, None, None, [0] * 4, [True] * 4,
        [2, 3], [1, 2], 1, False, 0.5, 0, 0.0, True, True,
    )  # fmt: skip


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("need_lse", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_opcheck(dropout: float, need_lse: bool):
    torch.library.opcheck(tiled_forward, arguments(dropout, need_lse))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_opcheck_of_a_grid():
    torch.library.opcheck(tiled_forward, grid_arguments())


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("backend", ["tiled", "reference"])
def test_compiles_without_a_graph_break_at_any_length(backend: str):
    table = torch.randn(2, 9, 8, requires_grad=True)

    def layer(x: torch.Tensor) -> torch.Tensor:
        terms = Terms(keys=OffsetTable(table, -4), values=OffsetTable(table, -8))
        return attention(2 * x, x, x, terms, causal=True, backend=backend).sin()

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 33, 65):
        x = torch.randn(1, 2, length, 8, requires_grad=True)
        results = []
        for run in (layer, compiled):
            x.grad = table.grad = None
            run(x).sum().backward()
            results.append((run(x).detach(), x.grad, table.grad))
        torch.testing.assert_close(*results)


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_with_parameters_as_tables_and_a_cache():
    """Sizes of parameters stay numbers while those of inputs become symbols."""
    torch.manual_seed(0)
    model = DecoderLM(DecoderConfig(vocabulary=7, width=16, layers=1, heads=2, dropout=0.0))
    compiled = torch.compile(model, dynamic=True, backend="eager")
    tokens = torch.randint(7, (1, 13))
    cache, parts = model.new_cache(), []
    with torch.no_grad():
        for begin, end in ((0, 4), (4, 9), (9, 10), (10, 13)):
            parts.append(compiled(tokens[:, begin:end], cache))
        torch.testing.assert_close(torch.cat(parts, 1), model(tokens))


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
def test_exports_at_any_length():
    layer = MultiheadAttention(16, 2, position=Huang(8, 12)).eval()

    class Causal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x, x, is_causal=True, need_weights=False)[0]

    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        Causal(), (torch.randn(2, 5, 16),), dynamic_shapes={"x": {1: length}}
    )
    for tokens in (3, 5, 33):
        x = torch.randn(2, tokens, 16)
        torch.testing.assert_close(program.module()(x), Causal()(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_falls_to_the_reference_and_is_right():
    q, k, v = (torch.randn(1, 1, 5, 3, dtype=torch.float64) for _ in range(3))

    def run(q: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v)

    step = torch.randn_like(q)
    _, slope = torch.func.jvp(run, (q,), (step,))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(run(forward_ad.make_dual(q, step))).tangent
        with pytest.raises(BackendError, match="tiled: forward-mode derivatives"):
            attention(forward_ad.make_dual(q, step), k, v, backend="tiled")
    expected = (run(q + 1e-6 * step) - run(q - 1e-6 * step)) / 2e-6
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(tangent, slope)


def test_activation_checkpointing_repeats_the_same_dropout():
    case = CASES["per head"]
    grads = []
    for saved in (False, True):
        named = {n: x.requires_grad_() for n, x in case.inputs().items()}
        torch.manual_seed(5)

        def run(q: torch.Tensor, named=named) -> torch.Tensor:
            return case.run(named | {"q": q}, "tiled", dropout=0.5)[0]

        q = named["q"]
        output = checkpoint(run, q, use_reentrant=False) if saved else run(q)
        output.square().sum().backward()  # type: ignore[union-attr]
        grads.append(q.grad)
    assert torch.equal(*grads)


def test_shapes_and_dtypes_on_the_meta_device():
    q = torch.empty(2, 4, 5, 8, device="meta", dtype=torch.bfloat16)
    v = torch.empty(2, 4, 5, 6, device="meta", dtype=torch.bfloat16)
    output, lse = attention(q, q, v, return_lse=True)
    assert (output.shape, output.dtype) == ((2, 4, 5, 6), torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((2, 4, 5), torch.float32)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4)])
def test_nothing_in_gives_nothing_out(shape: tuple[int, ...]):
    q = torch.zeros(shape, requires_grad=True)
    k = torch.zeros(shape[0], 2, 3, 4)
    output = attention(q, k, k, Terms(keys=OffsetTable(torch.zeros(1, 3, 4), 0)))
    assert output.shape == shape
    output.sum().backward()


def test_no_key_at_all_gives_zeros():
    q, k = torch.ones(1, 2, 3, 4, requires_grad=True), torch.ones(1, 2, 0, 4)
    output = attention(q, k, k)
    assert torch.equal(output, torch.zeros(1, 2, 3, 4))
    output.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))  # type: ignore[arg-type]
