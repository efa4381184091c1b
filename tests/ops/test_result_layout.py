"""Where the output and the gradients lie in memory: with the heads where the inputs have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from relpos.layers import MultiheadAttention
from relpos.ops.arguments import Arguments
from relpos.ops.custom_op import CustomOp
from relpos.ops.native.ops import NATIVE
from relpos.ops.result_layout import empty_as
from relpos.ops.tiled.ops import TILED
from relpos.positions import Shaw
from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, every_blockwise, every_cpu_blockwise, native_alone
from tests.ops.cases import CASES, Case
from tests.ops.grid_cases import GRID_CASES, GridCase

FEW = replace(CASES["grouped"], queries=4, keys=40)
KINDS = {
    "line": CASES["q_rel"],
    "grouped": CASES["grouped"],
    "few queries": FEW,
    "one query": replace(FEW, queries=1),
    # Whole vectors: a head alone is summed where it lies.
    "wide": replace(CASES["grouped"], width=16, value_width=32),
    "grid": GRID_CASES["two before"],
}


def with_heads_inside(x: Tensor) -> Tensor:
    """`x (b, h, n, width)` as a projection cut into heads has it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def has_heads_inside(x: Tensor) -> bool:
    return x.transpose(1, 2).is_contiguous()


def results(case: Case | GridCase, backend: str, inside: Iterable[str] = ()) -> dict[str, Tensor]:
    """The output and the gradients by name; of inputs, those named have their heads inside."""
    named = case.inputs(dtype=DTYPES[backend])
    named |= {name: with_heads_inside(named[name]) for name in inside if name in named}
    return case.results(named, backend)


@pytest.mark.parametrize("kind", sorted(KINDS))
@every_blockwise
def test_results_lie_as_the_inputs_do(backend: str, kind: str):
    heads = ("q", "k", "v", "q_rel", "q_rel0")
    plain, inside = (results(KINDS[kind], backend, names) for names in ((), heads))
    assert_agrees(plain, inside)
    for name in {"output", *heads} & inside.keys():
        assert plain[name].is_contiguous(), name
        assert has_heads_inside(inside[name]), name


@every_blockwise
def test_each_result_goes_by_its_own_input(backend: str):
    found = results(KINDS["wide"], backend, ["k"])
    assert has_heads_inside(found["k"])
    assert not found["k"].is_contiguous()
    assert all(found[name].is_contiguous() for name in ("output", "q", "v"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@native_alone
def test_the_kernel_gives_the_same_bits_wherever_results_lie(backend: str, dtype: torch.dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 2, 4, 33, 16).to(dtype)
    found = []
    for laid in (torch.clone, with_heads_inside):
        q, k, v = (laid(part).requires_grad_() for part in x)
        output = torch.ops.relpos.native_forward(q, k, v, scale=0.3)[0]
        found.append([output, *torch.autograd.grad(output.sin().sum(), (q, k, v))])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@every_cpu_blockwise
@pytest.mark.costly(2)
def test_a_graph_that_is_compiled_knows_where_results_lie(backend: str, dynamic: bool):
    """Else what compiles it for the strides that it was told of goes wrong."""
    told: list[tuple[int, ...]] = []

    def note(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        for node in graph.graph.nodes:
            if node.op == "output":
                told.extend(x.meta["example_value"].stride() for x in node.args[0])
        return graph

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        case = KINDS["wide"]
        return case.run({"q": q, "k": k, "v": v, **tables}, backend)[0]

    tables = KINDS["wide"].inputs(dtype=DTYPES[backend])
    q, k, v = (tables.pop(name) for name in "qkv")
    for laid in (with_heads_inside, torch.clone):
        torch._dynamo.reset()
        told.clear()
        compiled = torch.compile(run, fullgraph=True, backend=note, dynamic=dynamic)
        output = compiled(laid(q), laid(k), laid(v))
        assert [tuple(map(int, stride)) for stride in told] == [output.stride()]


# Tensors (b, h, n, width) that lie so.
LAYOUTS: dict[str, Callable[[int, int, int, int], Tensor]] = {
    "contiguous": torch.randn,
    "inside": lambda b, h, n, d: torch.randn(b, n, h, d).transpose(1, 2),
    "packed": lambda b, h, n, d: torch.randn(b, n, 3 * h, d)[:, :, h : 2 * h].transpose(1, 2),
    "numbers apart": lambda b, h, n, d: torch.randn(b, n, h, d, 3)[..., 1].transpose(1, 2),
    "numbers outside heads": lambda b, h, n, d: torch.randn(b, n, d, h).permute(0, 3, 1, 2),
    "sequences inside": lambda b, h, n, d: torch.randn(n, b, h, d).permute(1, 2, 0, 3),
    "heads first": lambda b, h, n, d: torch.randn(h, b, n, d).transpose(0, 1),
    "one for all heads": lambda b, h, n, d: torch.randn(b, 1, n, d).expand(b, h, n, d),
}


def check_what_a_trace_is_told(op: CustomOp, layout: str, queries: int, keys: int) -> None:
    """The sizes and strides of all results are those that a trace is told."""
    torch.manual_seed(0)
    lay = LAYOUTS[layout]
    q, q_rel = (lay(2, 4, queries, width) for width in (16, 8))
    k, v = (lay(2, 2, keys, width) for width in (16, 24))
    values = op.values(
        Arguments(
            q=q, k=k, v=v, q_rel=q_rel, keys=torch.randn(1, 5, 8), first_offsets=[-2, 0, 0, 0],
            scale=0.3, query_start=keys - queries, return_lse=True,
        )
    )  # fmt: skip
    results, told = op._compute_forward(op.named(values), values), op.fake_forward(*values)
    named = dict(zip(op.results, results, strict=True))
    wanted = [int(name in ("q", "k", "v", "q_rel")) for name in op.learnable]
    flow = (torch.randn_like(named["output"]), None, *([None] * ("axis_weights" in named)))
    backward = *flow, *(named[name] for name in op.saved), wanted, *values
    found = [*results, *(x for x in op._compute_backward(*backward) if x is not None and x.numel())]
    told = [*told, *(x for x in op.fake_backward(*backward) if x.numel())]
    assert [laid(x) for x in found] == [laid(x) for x in told]


def laid(x: Tensor) -> tuple[tuple[int, int], ...]:
    """Sizes and strides; where there is one number alone along an axis its stride is no matter."""
    return tuple((n, stride if n > 1 else 0) for n, stride in zip(x.shape, x.stride(), strict=True))


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (1, 9), (0, 3)])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("op", [NATIVE, TILED], ids=["native", "tiled"])
def test_a_trace_is_told_how_results_lie(op: CustomOp, layout: str, queries: int, keys: int):
    check_what_a_trace_is_told(op, layout, queries, keys)


@pytest.mark.parametrize(
    ("x", "strides"),
    [
        (torch.zeros(2, 3, 5, 4), (60, 20, 4, 1)),
        (torch.zeros(2, 5, 3, 4).transpose(1, 2), (60, 4, 12, 1)),
        (torch.zeros(2, 5, 9, 4)[:, :, 3:6].transpose(1, 2), (60, 4, 12, 1)),  # of q, k, v in one
        (torch.zeros(5, 2, 3, 4).permute(1, 2, 0, 3), (60, 4, 12, 1)),  # tokens before sequences
        (torch.zeros(2, 1, 5, 4).expand(2, 3, 5, 4), (60, 20, 4, 1)),
        (torch.zeros(2, 5, 1, 4).transpose(1, 2), (20, 20, 4, 1)),  # one head: no matter
    ],
    ids=["contiguous", "inside", "packed", "sequence last", "expanded", "one head"],
)
def test_which_inputs_have_their_heads_inside(x: Tensor, strides: tuple[int, ...]):
    assert empty_as(x, x.shape).stride() == strides


@native_alone
def test_a_layer_moves_no_heads(backend: str):
    """The output goes into its projection, and the gradients into theirs, as they lie."""
    found: list[str] = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function._schema.name in ("aten::clone", "aten::copy_", "aten::_to_copy"):
                found.append(function._schema.name)
            return function(*args, **(kwargs or {}))

    layer = MultiheadAttention(32, 4, kdim=32, vdim=24, position=Shaw(8, max_distance=3))
    layer.batch_first = True
    x, y = torch.randn(2, 9, 32, requires_grad=True), torch.randn(2, 9, 24, requires_grad=True)
    weight = torch.randn(2, 9, 32)
    with Copies():
        output, _ = layer(x, x.clone(), y, need_weights=False)
        output.backward(weight)
    assert found == ["aten::clone"]  # the one above
