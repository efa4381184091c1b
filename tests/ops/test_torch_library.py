"""The op inside torch: opcheck, compile, checkpointing, devices without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from relpos import BackendError, OffsetTable, Terms, attention, backends
from relpos.layers import MultiheadAttention
from relpos.ops.arguments import AXIS_TABLES, Arguments
from relpos.ops.native.ops import NATIVE
from relpos.ops.tiled.ops import TILED
from relpos.ops.triton.ops import TRITON
from relpos.positions import Huang
from relpos_tasks.models import DecoderConfig, DecoderLM
from tests.ops.agreement import assert_agrees
from tests.ops.backends import (
    DTYPES,
    ON_GPU,
    every_backend,
    every_blockwise,
    every_cpu_blockwise,
    native_alone,
)
from tests.ops.cases import CASES
from tests.ops.grid_cases import GRID_CASES

OPERATORS = {"native": NATIVE, "tiled": TILED, "triton": TRITON}


def operator(backend: str) -> Any:
    """What torch sees of a backend."""
    return getattr(torch.ops.relpos, f"{backend}_forward").default


def leaves(backend: str) -> Callable[..., torch.Tensor]:
    """Random tensors that want gradients, from their sizes."""
    torch.manual_seed(0)
    options = {"dtype": DTYPES[backend], "device": place(backend)}
    return lambda *shape: torch.randn(*shape, **options).requires_grad_()


def place(backend: str) -> str:
    """The device of its operator's tensors."""
    return "cuda" if backend == "triton" and ON_GPU else "cpu"


def in_order(backend: str, **arguments: Any) -> tuple:
    """What the backend's operator takes of some arguments."""
    return tuple(OPERATORS[backend].values(Arguments(**arguments)))


def arguments(backend: str, dropout: float = 0.0, need_lse: bool = True) -> tuple:
    leaf = leaves(backend)
    return in_order(
        backend, q=leaf(2, 4, 5, 3), k=leaf(2, 2, 7, 3), v=leaf(2, 2, 7, 6), keys=leaf(4, 5, 2),
        queries=leaf(1, 4, 3), bias=leaf(1, 3), values=leaf(1, 5, 6), q_rel=leaf(2, 4, 5, 2),
        mask=leaf(2, 1, 5, 7),
        documents=torch.tensor([[0, 0, 0, 1, 1, 1, -1]], device=place(backend)),
        seed=torch.tensor(7, device=place(backend)), first_offsets=[-2, -1, -1, -3],
        zero_beyond=[0, 0, 1, 0], causal=True, scale=0.5, query_start=2, dropout=dropout,
        return_lse=need_lse,
    )  # fmt: skip


def grid_arguments(backend: str) -> tuple:
    """A grid of 2 x 3 keys with a class token, and one of 1 x 2 queries with one.

    For `native` the first axis has keys with a q_rel, bias and values, and the other one keys and
    queries.
    """
    leaf = leaves(backend)
    of_grid: dict[str, Any] = (
        {
            "q_rel": leaf(2, 4, 3, 4), "axis_tables": leaf(4, 1 * 2 * (4 + 1 + 6) + 2 * 3 * 6),
            "axis_key_widths": [4, 3], "axis_has_q_rel": [1, 0], "axis_has_queries": [0, 1],
            "axis_has_bias": [1, 0], "axis_has_values": [1, 0],
        }
        if backend == "native"
        else {
            "key_axis_logits": leaf(1, 4, 3, 5), "query_axis_logits": leaf(2, 4, 7, 3),
            "need_axis_weights": True,
        }
    )  # fmt: skip
    return in_order(
        backend, q=leaf(2, 4, 3, 3), k=leaf(2, 2, 7, 3), v=leaf(2, 2, 7, 6), key_grid=[2, 3],
        query_grid=[1, 2], prefix=1, scale=0.5, return_lse=True, **of_grid,
    )  # fmt: skip


def joint_arguments(backend: str) -> tuple:
    """A grid of 2 x 3 with a bias of each pair of offsets alone."""
    leaf = leaves(backend)
    no_tables = {name: [0, 0] for name in AXIS_TABLES if name != "axis_tables"}
    return in_order(
        backend, q=leaf(2, 4, 6, 3), k=leaf(2, 4, 6, 3), v=leaf(2, 4, 6, 6),
        joint_bias=leaf(4, 15), key_grid=[2, 3], query_grid=[2, 3], scale=0.5, **no_tables,
    )  # fmt: skip


def local_arguments(backend: str) -> tuple:
    """A line of tokens with a window, ranges of keys, one of them empty, and a softcap."""
    leaf = leaves(backend)
    return in_order(
        backend, q=leaf(2, 4, 5, 3), k=leaf(2, 2, 7, 3), v=leaf(2, 2, 7, 6), keys=leaf(4, 5, 3),
        values=leaf(1, 5, 6), first_offsets=[-2, 0, 0, -3], scale=0.5, query_start=2,
        key_ranges=torch.tensor([[[0, 3], [-2, 9], [4, 4], [1, 7], [3, 6]]], device=place(backend)),
        window=[3, -1], softcap=1.5, return_lse=True,
    )  # fmt: skip


def neighbourhood_arguments(backend: str) -> tuple:
    """A grid of 2 x 3 with a window along each axis."""
    leaf = leaves(backend)
    no_tables = {name: [0, 0] for name in AXIS_TABLES if name != "axis_tables"}
    return in_order(
        backend, q=leaf(2, 4, 6, 3), k=leaf(2, 4, 6, 3), v=leaf(2, 4, 6, 6), scale=0.5,
        joint_bias=leaf(4, 15), key_grid=[2, 3], query_grid=[2, 3], window=[0, 1, 1, -1],
        **no_tables,
    )  # fmt: skip


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("need_lse", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@every_blockwise
def test_opcheck(backend: str, dropout: float, need_lse: bool):
    torch.library.opcheck(operator(backend), arguments(backend, dropout, need_lse))


@pytest.mark.parametrize("make", [grid_arguments, joint_arguments], ids=["tables", "joint_bias"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@every_blockwise
def test_opcheck_of_a_grid(backend: str, make: Callable[[str], tuple]):
    torch.library.opcheck(operator(backend), make(backend))


def axis_ranges_arguments(backend: str) -> tuple:
    """A grid of 2 x 3 whose queries, on one of 1 x 2, see some coordinates along each axis."""
    leaf = leaves(backend)
    no_tables = {name: [0, 0] for name in AXIS_TABLES if name != "axis_tables"}
    ranges = torch.tensor([[[0, 1], [-1, 2], [1, 9]], [[1, 2], [2, 2], [0, 3]]])
    return in_order(
        backend, q=leaf(2, 4, 2, 3), k=leaf(2, 4, 6, 3), v=leaf(2, 4, 6, 6), scale=0.5,
        key_grid=[2, 3], query_grid=[1, 2], axis_ranges=ranges.to(place(backend)), **no_tables,
    )  # fmt: skip


@pytest.mark.parametrize(
    "make", [local_arguments, neighbourhood_arguments, axis_ranges_arguments],
    ids=["line", "windows of axes", "ranges of axes"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@every_blockwise
def test_opcheck_of_local_attention(backend: str, make: Callable[[str], tuple]):
    torch.library.opcheck(operator(backend), make(backend))


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@every_backend
@pytest.mark.costly(4, of="compiled models")
def test_compiles_without_a_graph_break_at_any_length(backend: str):
    table = torch.randn(2, 9, 8, dtype=DTYPES[backend], requires_grad=True)

    def layer(x: torch.Tensor) -> torch.Tensor:
        terms = Terms(keys=OffsetTable(table, -4), values=OffsetTable(table, -8))
        return attention(2 * x, x, x, terms, causal=True, backend=backend).sin()

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 33, 65):
        x = torch.randn(1, 2, length, 8, dtype=DTYPES[backend], requires_grad=True)
        results = []
        for run in (layer, compiled):
            x.grad = table.grad = None
            run(x).sum().backward()
            results.append((run(x).detach(), x.grad, table.grad))
        assert_agrees(*results)


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["grid", "half precision", "dropout"])
@every_blockwise
@pytest.mark.costly(2)
def test_compiled_calls_give_the_same_numbers(backend: str, name: str):
    """What else the operator is called with; inputs that are not contiguous, too."""
    case = GRID_CASES["joint beside tables"] if name == "grid" else CASES["queries per head"]
    named = case.inputs(dtype=torch.bfloat16 if name == "half precision" else DTYPES[backend])
    named |= {x: named[x].transpose(1, 2).contiguous().transpose(1, 2) for x in "qkv"}
    rate = 0.5 if name == "dropout" else 0.0

    def gradients() -> list[torch.Tensor]:
        leaves = {name: x.clone().requires_grad_() for name, x in named.items()}
        torch.manual_seed(0)
        output, lse = run(leaves)
        return torch.autograd.grad(output.sum() + lse.sum(), list(leaves.values()))

    def run(named: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return case.run(named, backend, dropout=rate)

    want = gradients()
    run = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_close(gradients(), want)


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@native_alone
def test_compiled_graphs_alone_call_operators_without_a_derivative(backend: str):
    """Another trace may be differentiated."""
    q = leaves(backend)(1, 2, 5, 4)
    called: list[str] = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        called.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph)

    def run(q: torch.Tensor) -> torch.Tensor:
        return attention(q, q, q, backend=backend)

    compiled = torch.compile(run, fullgraph=True, backend=aot_autograd(fw_compiler=note))
    compiled(q).sum().backward()
    with torch.no_grad():
        assert_close(compiled(q), run(q))
    kernels = [
        f"relpos.native_{name}_kernel.default" for name in ("forward", "backward", "forward")
    ]
    assert [name for name in called if name.startswith("relpos.")] == kernels
    graph = make_fx(run)(q.detach())
    assert "relpos.native_forward.default" in {str(node.target) for node in graph.graph.nodes}
    (seen,) = torch.autograd.grad(graph(q).sum(), q)
    assert_close(seen, q.grad)


@pytest.mark.slow
@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.costly(4, of="compiled models")
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
@every_blockwise
def test_a_named_backend_exports_as_one_operation(backend: str):
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = torch.nn.Parameter(torch.randn(2, 9, 8, dtype=DTYPES[backend]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            terms = Terms(keys=OffsetTable(self.rows, -4), queries=OffsetTable(self.rows, -2))
            return attention(x, x, x, terms, causal=True, backend=backend)

    def tokens(length: int) -> torch.Tensor:
        return torch.randn(1, 2, length, 8, dtype=DTYPES[backend])

    module = Named()
    length = torch.export.Dim("length", min=2, max=999)
    program = torch.export.export(module, (tokens(5),), dynamic_shapes={"x": {2: length}})
    assert [node for node in program.graph.nodes if node.target == operator(backend)]
    for count in (3, 33, 300):
        x = tokens(count)
        assert_agrees(program.module()(x), module(x))


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
    expected = (run(q + 1e-6 * step) - run(q - 1e-6 * step)) / 2e-6
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(tangent, slope)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@every_blockwise
def test_forward_mode_of_a_named_backend_is_refused(backend: str):
    q, k, v = (torch.randn(1, 1, 5, 3, dtype=DTYPES[backend]) for _ in range(3))
    with (
        forward_ad.dual_level(),
        pytest.raises(BackendError, match=f"{backend}: not supported .*: forward-mode"),
    ):
        attention(forward_ad.make_dual(q, torch.ones_like(q)), k, v, backend=backend)


@every_blockwise
def test_activation_checkpointing_repeats_the_same_dropout(backend: str):
    case = CASES["per head"]
    grads = []
    for saved in (False, True):
        named = case.inputs(dtype=DTYPES[backend])
        named = {n: x.to(place(backend)).requires_grad_() for n, x in named.items()}
        torch.manual_seed(5)

        def run(q: torch.Tensor, named=named) -> torch.Tensor:
            return case.run(named | {"q": q}, backend, dropout=0.5)[0]

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


@every_backend
def test_a_default_device_is_for_what_the_caller_makes(backend: str):
    q, documents = torch.randn(1, 2, 70, 8), torch.arange(70)[None] // 20
    expected = attention(q, q, q, documents=documents, backend=backend)
    torch.set_default_device("meta")
    try:
        found = attention(q, q, q, documents=documents, backend=backend)
    finally:
        torch.set_default_device(None)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4)])
@every_backend
def test_nothing_in_gives_nothing_out(backend: str, shape: tuple[int, ...]):
    q = torch.zeros(shape, requires_grad=True)
    k = torch.zeros(shape[0], 2, 3, 4)
    terms = Terms(keys=OffsetTable(torch.zeros(1, 3, 4), 0))
    output = attention(q, k, k, terms, backend=backend)
    assert output.shape == shape
    output.sum().backward()


@every_backend
def test_values_without_numbers_have_gradients_without_any(backend: str):
    q, v = torch.randn(1, 2, 4, 8, requires_grad=True), torch.zeros(1, 2, 4, 0, requires_grad=True)
    rows = torch.zeros(1, 3, 0, requires_grad=True)
    terms = Terms(values=OffsetTable(rows, -1))
    output, lse = attention(q, q, v, terms, backend=backend, return_lse=True)
    (output.sum() + lse.sum()).backward()
    assert [x.grad.shape for x in (v, rows)] == [v.shape, rows.shape]  # type: ignore[union-attr]


@every_backend
def test_no_key_at_all_gives_zeros(backend: str):
    q, k = torch.ones(1, 2, 3, 4, requires_grad=True), torch.ones(1, 2, 0, 4)
    output = attention(q, k, k, backend=backend)
    assert torch.equal(output, torch.zeros(1, 2, 3, 4))
    output.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))  # type: ignore[arg-type]


@every_backend
def test_values_without_width_give_an_output_without_width(backend: str):
    q = torch.randn(1, 2, 5, 4, requires_grad=True)
    output, lse = attention(q, q, q[..., :0], backend=backend, return_lse=True)
    assert output.shape == (1, 2, 5, 0)
    lse.sum().backward()
    assert q.grad is not None
    assert q.grad.any()


@every_cpu_blockwise
def test_operators_are_called_where_somebody_looks_at_them_alone(monkeypatch, backend: str):
    """Finding them, or their derivatives, takes torch longer than a short call does."""
    q = leaves(backend)(1, 2, 5, 4)
    expected = attention(q, q, q, backend="reference")

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with Seen():
        output = attention(q, q, q, backend=backend)
        output.sum().backward()
    operators = [f"relpos.{backend}_{direction}.default" for direction in ("forward", "backward")]
    assert [name for name in names if name.startswith("relpos.")] == operators
    assert_close(output, expected)

    def unused(*_: Any) -> None:
        raise AssertionError("an operator was called")

    monkeypatch.setattr(OPERATORS[backend], "_forward", unused)
    monkeypatch.setattr(OPERATORS[backend], "_backward", unused)
    seen, q.grad = q.grad, None
    attention(q, q, q, backend=backend).sum().backward()
    assert_close(q.grad, seen)


INTEGERS = {"documents", "query_documents", "key_ranges", "axis_ranges"}
GRID: dict[str, Any] = {"key_grid": [1, 5], "query_grid": [1, 3]} | {
    name: [0, 0]
    for name in (
        "axis_key_widths", "axis_has_q_rel", "axis_has_queries", "axis_has_bias", "axis_has_values"
    )
}  # fmt: skip


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"k": (1, 2, 5, 9)}, r"k must be \(b, g, j, d\)"),
        ({"v": (1, 2, 4, 8)}, r"v must be \(b, g, j, dv\)"),
        ({"keys": (3, 5, 8)}, r"tables must be \(h or 1, r, d\)"),
        ({"bias": (2, 5, 1)}, r"a bias \(h or 1, r\)"),
        ({"q_rel": (1, 2, 4, 8)}, "q_rel must be"),
        ({"mask": (1, 1, 4, 5)}, "mask must fit"),
        ({"documents": (1, 4)}, r"documents must be \(b or 1, j\)"),
        ({"query_documents": (1, 4)}, r"query_documents must be \(b or 1, i\)"),
        ({"key_ranges": (1, 4, 2)}, r"key_ranges must be \(b or 1, i, 2\)"),
        ({"query_start": 3}, "or the queries among the keys"),
        (GRID | {"key_grid": [2, 3]}, "as many tokens as there are"),
        ({"key_grid": [1, 5], "query_grid": [1, 3]}, "an element for each axis"),
        (GRID | {"joint_bias": torch.zeros(1, 8)}, r"joint_bias must be \(h or 1, entries\)"),
        (GRID | {"axis_has_bias": [1, 1]}, "axis_tables must be"),
        (
            GRID | {"axis_ranges": (1, 3, 2)},
            r"axis_ranges must be \(b or 1, sum",
        ),
        ({"axis_ranges": (1, 4, 2)}, "axis_ranges are of a grid"),
        (GRID | {"axis_has_q_rel": [1, 0], "axis_key_widths": [4, 0]}, "q_rel must have each axis"),
        ({"window": [1]}, "lists must be as long as they are declared"),
        ({"values": torch.zeros(1, 5, 8).half()}, "tables must have the dtype of q"),
    ],
)
def test_native_stays_within_the_memory_of_tensors_that_do_not_fit(changed: dict, rule: str):
    """As of a program that was traced for another length, in which nobody checks."""
    if backends()["native"]:
        pytest.skip(str(backends()["native"]))
    q, given = torch.zeros(1, 2, 3, 8), {"k": (1, 2, 5, 8), "v": (1, 2, 5, 8)}
    if changed.keys() & {"query_documents", "query_start"}:
        given["documents"] = (1, 5)
    tensors: dict[str, Any] = {
        name: torch.zeros(x, dtype=torch.int64 if name in INTEGERS else None)
        if isinstance(x, tuple) else x
        for name, x in (given | changed).items()
    }  # fmt: skip
    tensors["first_offsets"] = [0, 0, 0, 0]
    with pytest.raises(RuntimeError, match=f"relpos native: .*{rule}"):
        torch.ops.relpos.native_forward(q, **tensors)


@pytest.mark.no_typecheck
def test_so_does_its_backward():
    if backends()["native"]:
        pytest.skip(str(backends()["native"]))
    q, k = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 5, 8)
    output, _, softmax, rounded_off = torch.ops.relpos.native_forward(q, k, k)
    given = {
        "d_output": output, "d_lse": None, "output": output, "softmax": softmax,
        "rounded_off": rounded_off,
    }  # fmt: skip
    needs = [1, 1, 1, *[0] * (len(NATIVE.learnable) - 3)]
    for name, wrong in (
        ("d_output", torch.zeros(1, 2, 2, 8)), ("output", torch.zeros(1, 2, 3, 7)),
        ("softmax", torch.zeros(2, 1, 2, 2)), ("d_lse", torch.zeros(1, 2, 4)),
        ("rounded_off", torch.zeros(1, 2, 3, 8).half()), ("rounded_off", torch.zeros(1, 2, 2, 8)),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=f"relpos native: .*{name} must be"):
            torch.ops.relpos.native_backward(*(given | {name: wrong}).values(), needs, q, k, k)
    assert len(torch.ops.relpos.native_backward(*given.values(), needs, q, k, k)) == len(needs)


def test_values_without_numbers_have_tables_too():
    q, v = torch.randn(1, 2, 3, 8), torch.zeros(1, 2, 3, 0)
    terms = Terms(values=OffsetTable(torch.zeros(1, 5, 0), -2))
    assert attention(q, q, v, terms).shape == (1, 2, 3, 0)


@native_alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_only_backward_reads_is_not_made_where_none_follows(backend: str, dtype: torch.dtype):
    q = torch.randn(1, 2, 9, 8).to(dtype)
    ops = torch.ops.relpos
    ways = ops.native_forward_alone, ops.native_forward, ops.native_forward_kernel
    *found, nothing = ways[0](q, q, q)
    assert nothing.numel() == 0
    for way in ways[1:]:
        *wanted, rounded_off = way(q, q, q)
        assert rounded_off.numel() == (0 if dtype == torch.float32 else q.numel())
        assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
