"""What is made beside the tiles' products: a bias for kernels, its gradient, logits by axis."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch
from torch import Tensor

from relpos import GridTerms, OffsetTable, Terms, attention, backends
from relpos.ops.axis_terms import key_axis_logits, rows_of_pairs
from tests.ops.agreement import assert_agrees, assert_within_budget
from tests.ops.backends import ON_GPU
from tests.ops.cases import Case
from tests.ops.test_triton import computed

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("quick_interpreter"),
]

DEVICE = "cuda" if ON_GPU else "cpu"
its_tiles = pytest.mark.skipif(ON_GPU, reason="tiles have other sizes there")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("scale", [0.125, -3.0])
def test_a_bias_is_widened_and_stays_finite_over_the_scale(dtype: torch.dtype, scale: float):
    from relpos.ops.triton.bias_rows import bias_rows
    from relpos.ops.triton.kernel_args import BIAS_MARGIN

    rows = torch.randn(3, 300).to(DEVICE, dtype)
    rows[:, 7], rows[:, 8] = -torch.inf, torch.finfo(dtype).min
    plain = bias_rows(rows, scale, over_scale=False)
    assert plain.dtype == torch.float32
    assert plain.shape == (3, 300 + 2 * BIAS_MARGIN)
    inner = slice(BIAS_MARGIN, BIAS_MARGIN + 300)
    assert torch.equal(plain[:, inner], rows.float())
    assert torch.equal(plain[:, :BIAS_MARGIN], rows[:, :1].float().expand(-1, BIAS_MARGIN))
    assert torch.equal(plain[:, inner.stop :], rows[:, -1:].float().expand(-1, BIAS_MARGIN))
    over = bias_rows(rows, scale, over_scale=True)[:, inner]
    usual = torch.arange(300) != 8
    assert_agrees(over[:, usual], rows.float()[:, usual] / scale)
    assert over[:, 8].isfinite().all()
    assert (over[:, 8] * scale).max() < -6e4


def bias_case(**changes: object) -> Case:
    return replace(
        Case(batch=2, heads=2, groups=1, queries=70, keys=110, terms="bias", table_window=(30, 20)),
        **changes,
    )


@pytest.mark.parametrize(
    "case",
    [
        bias_case(), bias_case(causal=True, table_heads=2), bias_case(query_start=-20),
        bias_case(query_start=61, keys=80), bias_case(window=(25, 3), softcap=2.0),
        bias_case(terms="keys bias values", table_heads=2), bias_case(documents="runs"),
        bias_case(table_window=(2, 1)), bias_case(queries=1),
    ],
    ids=[
        "plain", "causal, per head", "queries before", "queries after", "window", "all", "runs",
        "few rows", "one query",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("narrow", "in_two"), [(True, False), (True, True), (False, False)],
    ids=["by dq", "by dq in two launches", "by the tables' kernel"],
)  # fmt: skip
@pytest.mark.costly(2)
def test_a_bias_gets_the_same_gradient_wherever_it_is_summed(
    case: Case, narrow: bool, in_two: bool, monkeypatch: pytest.MonkeyPatch
):
    """By the dq kernel in a narrow band, and else by that of the tables."""
    from relpos.ops.triton import backward, call_plan, launch

    ran, run_programs = {}, launch.run_programs

    def noted(kernel, *arguments, **options):
        ran[kernel.fn.__name__] = options
        run_programs(kernel, *arguments, **options)

    monkeypatch.setattr(launch, "run_programs", noted)
    monkeypatch.setattr(backward, "_KEYS_OF_TWO_LAUNCHES", 0 if in_two else 1 << 62)
    monkeypatch.setattr(call_plan, "NARROW", 512 if narrow else 1)
    monkeypatch.setattr(call_plan, "_plans", type(call_plan._plans)())
    found, wanted = (computed(case, 0, torch.float32, name) for name in ("triton", "reference"))
    assert_agrees(found, wanted)
    assert ran["dq_kernel"]["NEEDS_BAND_SUMS"] == narrow
    assert ran["dq_kernel"]["WALKS_ENDS"] == (not in_two or case.documents is not None)
    assert ("dtables_kernel" in ran) == (not narrow or "keys" in case.terms)


@its_tiles
@pytest.mark.parametrize(("m", "n"), [(32, 32), (64, 32), (64, 16), (128, 64)])
def test_sums_in_tiles_of_other_shapes_are_the_same(
    m: int, n: int, monkeypatch: pytest.MonkeyPatch
):
    from relpos.ops.triton import launch
    from relpos.ops.triton.tuning import TileShape

    monkeypatch.setattr(launch, "tile_shapes", lambda *_: [TileShape(m, n, 4, 1)])
    case = bias_case(query_start=13, keys=130)
    found, wanted = (computed(case, 0, torch.float32, name) for name in ("triton", "reference"))
    assert_agrees(found, wanted)


def test_the_gradient_of_a_table_that_is_the_window_lies_as_others_do():
    """Its memory is what tracing was told, and no more."""
    rows = torch.randn(2, 21, device=DEVICE, requires_grad=True)
    x = torch.randn(1, 2, 40, 8, device=DEVICE)
    attention(x, x, x, Terms(bias=OffsetTable(rows, -10)), backend="triton").sum().backward()
    assert rows.grad is not None
    assert rows.grad.is_contiguous()
    assert rows.grad.untyped_storage().nbytes() == rows.nelement() * rows.element_size()


GRIDS = {
    "two axes, prefix": ((5, 7), 3, 2, 1, 6),
    "three axes, per head": ((3, 2, 4), 1, 2, 2, 16),
    "more than a tile": ((70, 3), 0, 1, 1, 20),
    "one column": ((4, 1), 0, 1, 1, 16),
}


@pytest.mark.parametrize("name", GRIDS)
def test_logits_by_axis_are_those_of_torch(name: str):
    from relpos.ops.triton.axis_logits import axis_logits, axis_logits_gradients

    shape, prefix, heads, table_heads, width = GRIDS[name]
    q = torch.randn(2, heads, prefix + prod(shape), width, device=DEVICE, requires_grad=True)
    terms = GridTerms(shape, tuple(axis(table_heads, s, width) for s in shape), prefix=prefix)
    tables = [each.keys.rows.requires_grad_() for each in terms.axes]
    wanted = key_axis_logits(q, terms, 0.3)
    rows = [rows_of_pairs(x.keys, s, s, q.dtype) for x, s in zip(terms.axes, shape, strict=True)]
    given = [q.detach(), [x.detach() for x in rows], shape, prefix, 0.3]
    assert_agrees(axis_logits(*given), wanted)
    flow = torch.randn_like(wanted)
    d_q, d_rows = axis_logits_gradients(flow, *given)
    d_tables = [
        torch.autograd.grad(x, table, flow_of)[0]
        for x, table, flow_of in zip(rows, tables, d_rows, strict=True)
    ]
    assert_agrees([d_q, *d_tables], torch.autograd.grad(wanted, [q, *tables], flow))


def axis(heads: int, size: int, width: int, dtype: torch.dtype = torch.float32) -> Terms:
    rows = torch.randn(heads, 2 * size - 1, width, device=DEVICE).to(dtype)
    return Terms(keys=OffsetTable(rows, 1 - size))


def half_a_grid() -> tuple[list[Tensor], GridTerms]:
    half = torch.float16
    qkv = [torch.randn(1, 2, 20, 16, device=DEVICE).to(half).requires_grad_() for _ in range(3)]
    terms = GridTerms((4, 5), (axis(1, 4, 16, half), axis(1, 5, 16, half)))
    return qkv, terms.map(lambda rows: rows.requires_grad_())


def test_in_16_bits_a_kernel_makes_them(monkeypatch: pytest.MonkeyPatch):
    """Where keys alone are multiplied by the queries."""
    from relpos.ops.triton import launch

    ran, run_programs = [], launch.run_programs

    def noted(kernel, *arguments, **options):
        ran.append(kernel.fn.__name__)
        run_programs(kernel, *arguments, **options)

    monkeypatch.setattr(launch, "run_programs", noted)
    qkv, terms = half_a_grid()
    attention(*qkv, terms, backend="triton").float().sum().backward()
    assert [ran.count(f"axis_{name}_kernel") for name in ("logits", "dq", "drows")] == [2, 2, 2]
    ran.clear()
    biased = tuple(
        replace(each, bias=OffsetTable(each.keys.rows[..., 0], each.keys.first))
        for each in terms.axes
    )
    attention(*qkv, replace(terms, axes=biased), backend="triton")
    assert not [name for name in ran if name.startswith("axis")]


@pytest.mark.parametrize("wanted", ["q", "rows"])
def test_what_is_frozen_costs_nothing(wanted: str, monkeypatch: pytest.MonkeyPatch):
    from relpos.ops.triton import launch

    (q, k, v), terms = half_a_grid()
    rows = [each.keys.rows for each in terms.axes]
    for x in (q, k, v, *rows):
        x.requires_grad_(x is q if wanted == "q" else any(x is row for row in rows))
    ran, run_programs = [], launch.run_programs

    def noted(kernel, *arguments, **options):
        ran.append(kernel.fn.__name__)
        run_programs(kernel, *arguments, **options)

    monkeypatch.setattr(launch, "run_programs", noted)
    attention(q, k, v, terms, backend="triton").float().sum().backward()
    assert ran.count("axis_dq_kernel") == (2 if wanted == "q" else 0)
    assert ran.count("axis_drows_kernel") == (2 if wanted == "rows" else 0)
    for x in [q] if wanted == "q" else rows:
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_along_a_long_axis_torch_makes_them(monkeypatch: pytest.MonkeyPatch):
    """There are many more pairs of coordinates than tokens."""
    from relpos.ops.triton import axis_op

    half = torch.float16
    q = torch.randn(1, 2, 24, 16, device=DEVICE).to(half)
    terms = GridTerms((12, 2), (axis(1, 12, 16, half), axis(1, 2, 16, half)))
    monkeypatch.setattr(axis_op, "_logits", None)
    assert attention(q, q, q, terms, backend="triton").isfinite().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_opcheck():
    from relpos.ops.triton import axis_op

    q = torch.randn(1, 2, 13, 16, device=DEVICE).half().requires_grad_()
    rows = [torch.randn(1, s, s, 16, device=DEVICE, requires_grad=True) for s in (3, 4)]
    torch.library.opcheck(axis_op._axis_logits, (q, rows, [3, 4], 1, 0.25))


@pytest.mark.parametrize("wanted", ["q", "rows", "both"])
def test_second_derivatives_are_as_near_as_the_references(wanted: str):
    given, grid = half_a_grid()

    def second(backend: str, dtype: torch.dtype) -> list[Tensor]:
        qkv = [x.detach().to(dtype).requires_grad_() for x in given]
        terms = grid.map(lambda rows: rows.detach().to(dtype).requires_grad_())
        rows = [each.keys.rows for each in terms.axes]
        learned = {"q": qkv[:1], "rows": rows, "both": [*qkv, *rows]}[wanted]
        output = attention(*qkv, terms, backend=backend)
        first = torch.autograd.grad(output.square().sum(), learned, create_graph=True)
        total = sum(x.float().square().sum() for x in first)
        return [*torch.autograd.grad(total, [*qkv, *rows])]

    ways = ("triton", torch.float16), ("reference", torch.float16), ("reference", torch.float64)
    for found, reference, exact in zip(*(second(*way) for way in ways), strict=True):
        assert_within_budget(found, reference, exact)
