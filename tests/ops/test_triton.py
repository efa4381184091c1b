"""The Triton kernels in the interpreter, or on a GPU: every term and gradient at small odd sizes.

The interpreter runs the programs of a launch one after another: of races it says nothing. On a GPU
the whole suite runs on this backend too (`backends.py`).
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from torch import Tensor

from relpos import BackendError, GridTerms, OffsetTable, Terms, attention, backends, chunk_ranges
from tests.ops import (
    test_dropout,
    test_gradients,
    test_meaning,
    test_parts,
    test_result_layout,
    test_torch_library,
)
from tests.ops.agreement import assert_agrees, assert_within_budget, cast
from tests.ops.backends import ON_GPU
from tests.ops.cases import CASES, Case, any_case
from tests.ops.grid_cases import GRID_CASES, GridCase
from tests.ops.test_precision import LAYOUTS, assert_a_mean_costs_no_digits

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    # The kernels carry no annotations, and the interpreter is slow.
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("quick_interpreter"),
]

FLOAT = torch.float32
its_tiles = pytest.mark.skipif(ON_GPU, reason="tiles have other sizes there")
LONGEST = 100  # some tiles of the interpreter's 32 x 16 either way
SLOW = {
    "queries, all offsets", "queries, grouped, causal", "queries, grouped, per head",
    "ranges, several row blocks", "several row blocks", "several row blocks, causal",
    "softcap, causal", "window, several row blocks",
}  # fmt: skip
SLOW_GRIDS = {
    "rows", "rows, causal", "rows, long prefix", "rows, pooled", "rows, window",
    "rows, window, prefix", "rows, neighborhoods", "rows, axis ranges, prefix", "padding",
    "two before",
}  # fmt: skip


def computed(case: Case | GridCase, seed: int, dtype: torch.dtype, backend: str) -> dict:
    """Output, log-sum-exp and gradients; from the same numbers, which `dtype` can hold."""
    named = cast(case.inputs(seed), dtype)
    if backend == "reference":
        named = cast(named, torch.float64)
    return case.results(named, backend)


def shortened(case: Case) -> Case:
    """One sequence, of at most `LONGEST` queries and keys."""
    share = max(1, case.queries / LONGEST, case.keys / LONGEST)
    queries, keys = (max(1, int(x / share)) for x in (case.queries, case.keys))
    return replace(case, batch=1, queries=queries, keys=keys)


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] if x in SLOW else []) for x in sorted(CASES)],
)
@pytest.mark.costly(8)
def test_output_and_gradients_equal_the_reference(name: str):
    case = shortened(CASES[name])
    assert_agrees(computed(case, 0, FLOAT, "triton"), computed(case, 0, FLOAT, "reference"))


@pytest.mark.parametrize("name", sorted(GRID_CASES.keys() - SLOW_GRIDS))
@pytest.mark.costly(10)
def test_output_and_gradients_on_a_grid_equal_the_reference(name: str):
    case = GRID_CASES[name]
    assert_agrees(computed(case, 0, FLOAT, "triton"), computed(case, 0, FLOAT, "reference"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["per head", "padding", "documents, mixed"])
def test_sequences_of_a_batch_keep_apart(name: str):
    case = replace(CASES[name], batch=3, queries=17, keys=20)
    assert_agrees(computed(case, 0, FLOAT, "triton"), computed(case, 0, FLOAT, "reference"))


@pytest.mark.slow
@hypothesis_settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(case=any_case())
def test_any_shape_window_and_mask_equals_the_reference(case: Case):
    assert_agrees(computed(case, 0, FLOAT, "triton"), computed(case, 0, FLOAT, "reference"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["per head", "all offsets, causal", "q_rel", "queries", "additive", "softcap", "ranges"],
)
@pytest.mark.costly(2)
def test_half_precision_is_within_budget(name: str):
    """The suite's own budget, from fewer draws (`test_precision.py`)."""
    case, draws = replace(CASES[name], batch=1), {"triton": [], "reference": [], "exact": []}
    for seed in range(3):
        named = cast(case.inputs(seed), torch.float16)
        for judge, found in draws.items():
            inputs = cast(named, torch.float64) if judge == "exact" else named
            backend = "reference" if judge == "exact" else judge
            found.append(case.results(inputs, backend))
    for part in draws["triton"][0]:
        stacked = (torch.stack([one[part] for one in found]) for found in draws.values())
        assert_within_budget(*stacked)


WITH_A_MEAN = {
    "line": Case(batch=1, queries=200, keys=200, groups=1, terms="keys bias values"),
    "queries alone": Case(batch=1, queries=200, keys=200, terms="queries bias"),
    "dS stored": Case(
        batch=1, queries=150, keys=150, width=16, terms="keys", table_window=(140, 140)
    ),
    "keys in parts": Case(batch=1, queries=9, keys=300, terms="keys bias"),
    "grid": GridCase(batch=1, shape=(9, 17), terms="keys bias"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_MEAN)
@pytest.mark.costly(1)
def test_a_mean_of_the_values_costs_gradients_no_digits(name: str, monkeypatch):
    """Kernels read what rounding took off the output, and so do parts of a row's keys.

    With a mean of 8 a row of few keys shows that the weights are rounded too.
    """
    from relpos.ops.triton import forward

    monkeypatch.setattr(forward, "_count_splits", lambda *_: 3 if name == "keys in parts" else 1)
    mean = 5.0 if name in ("queries alone", "keys in parts") else 8.0
    assert_a_mean_costs_no_digits(WITH_A_MEAN[name], "triton", torch.float16, mean)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["per head", "one query", "window"])
@pytest.mark.costly(2)
def test_dropout_and_its_gradients_belong_together(name: str):
    check = test_dropout.test_gradients_belong_to_the_weights_that_were_kept
    check("triton", name)


def test_dropout_keeps_its_share_and_draws_each_pair_alone():
    q = torch.randn(2, 3, 129, 16)
    eye = torch.eye(129).expand(2, 3, -1, -1)
    torch.manual_seed(1)
    kept = attention(q, q, eye, dropout=0.25, backend="triton") > 0
    drawn = kept.double() - 0.75
    deviation = (0.75 * 0.25) ** 0.5
    assert drawn.mean().abs() < 5 * deviation / kept.numel() ** 0.5
    shifted = [drawn.roll(1, axis) for axis in range(4)] + [drawn.roll((1, 1), (2, 3))]
    for other in shifted:  # neighbours know nothing of each other
        assert (drawn * other).mean().abs() < 5 * deviation**2 / kept.numel() ** 0.5


def test_a_query_without_keys_may_be_nan_with_a_clipped_table():
    """What an end row of a table adds to a row's exponents is not to reach what the mask hides."""
    q, k, v = (torch.randn(1, 1, 70, 8) for _ in range(3))
    keys, values = (torch.randn(1, 7, 8) for _ in range(2))
    mask = torch.ones(70, 70, dtype=torch.bool)
    mask[40] = False
    terms = Terms(keys=OffsetTable(keys, -3), values=OffsetTable(values, -3))

    def found(backend: str, query: float) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = v.clone().requires_grad_()
        of_mask = q.clone()
        of_mask[..., 40, :] = query
        output = attention(of_mask, k, leaf, terms, mask=mask, backend=backend)
        return output.detach(), torch.autograd.grad(output.sum(), leaf)[0]

    assert found("triton", torch.nan)[0][..., 40, :].eq(0).all()
    assert_agrees(found("triton", torch.nan), found("reference", 0.0))


@pytest.mark.slow
def test_the_rows_of_the_future_are_never_read():
    test_meaning.test_the_rows_of_the_future_are_never_read("triton")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize(
    "case",
    [
        replace(CASES["only the past"], keys=65, query_start=20, batch=1),
        replace(CASES["only the past"], queries=40, query_start=-30, batch=1),
        replace(CASES["documents and padding"], batch=1),
    ],
    ids=["future", "far future", "padding"],
)
@pytest.mark.costly(1)
def test_keys_that_no_query_reaches_are_never_read(case: Case, which: str):
    check = test_meaning.test_keys_that_no_query_reaches_are_never_read
    check("triton", case, which, torch.nan)


@pytest.mark.slow
def test_each_input_alone_gets_the_same_gradient():
    test_gradients.test_each_input_alone_gets_the_same_gradient("queries per head", "triton")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("make", ["arguments", "grid_arguments", "joint_arguments"])
@pytest.mark.costly(1)
def test_opcheck(make: str):
    arguments = getattr(test_torch_library, make)("triton")
    torch.library.opcheck(test_torch_library.operator("triton"), arguments)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.costly(1)
def test_compiles_without_a_graph_break_at_any_length(local: bool):
    table = torch.randn(2, 9, 8, requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        terms = Terms(keys=OffsetTable(table, -4), values=OffsetTable(table, -8))
        settings: dict[str, Any] = {"causal": True}
        if local:
            ranges = chunk_ranges(x.shape[2], 4, 1)
            settings = {"window": (6, 1), "key_ranges": ranges, "softcap": 2.0}
        return attention(2 * x, x, x, terms, backend="triton", **settings).sin()

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 33):
        x = torch.randn(1, 2, length, 8, requires_grad=True)
        results = []
        for run in (layer, compiled):
            x.grad = table.grad = None
            run(x).sum().backward()
            results.append((run(x).detach(), x.grad, table.grad))
        assert_agrees(*results)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_does_not_matter(layout: str):
    case = replace(CASES["grouped"], batch=1, heads=2, groups=1)
    named = case.inputs(dtype=FLOAT)
    moved = {name: LAYOUTS[layout](x) for name, x in named.items()}
    assert_agrees(case.run(moved, "triton"), case.run(named, "triton"))


# NumPy says so where an exponent is beyond all numbers; its power of two is 0 all the same.
@pytest.mark.filterwarnings("ignore:overflow encountered in multiply")
@pytest.mark.parametrize("level", [-1e9, torch.finfo(torch.float32).min])
def test_gradients_of_rows_whose_scores_are_all_huge(level: float):
    """Padding by large negative numbers, of a query that sees nothing else."""
    case = replace(CASES["causal"], batch=1)
    named = case.inputs(dtype=FLOAT)
    named["mask"] = torch.zeros(1, 1, 1, case.keys)
    named["mask"][..., :5] = level
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


DECODING = Case(batch=1, heads=2, groups=1, queries=5, keys=150, causal=True)


@pytest.mark.parametrize("splits", [2, 3, 7])
@pytest.mark.parametrize(
    "case",
    [
        DECODING,
        replace(DECODING, window=(70, None), softcap=2.0, table_heads=2),
        replace(DECODING, causal=False, mask="pairs", query_start=40),
        replace(DECODING, mask="additive, hiding", documents="runs"),
        replace(DECODING, queries=1, keys=201, rel_width=4, terms="keys bias values"),
    ],
    ids=["causal", "window", "pairs", "documents", "one query"],
)
@pytest.mark.costly(3)
def test_keys_are_split_where_queries_are_few(case: Case, splits: int, monkeypatch):
    """Some parts may be empty; dropout draws the same."""
    from relpos.ops.triton import forward, launch

    ran, run_programs = [], launch.run_programs

    def noted(kernel: Any, *arguments: Any, **options: Any) -> None:
        ran.append(kernel.fn.__name__)
        run_programs(kernel, *arguments, **options)

    monkeypatch.setattr(launch, "run_programs", noted)
    monkeypatch.setattr(forward, "_count_splits", lambda *_: splits)
    named = case.inputs(dtype=FLOAT)
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))
    assert "merge_kernel" in ran

    def dropped() -> Tensor:
        torch.manual_seed(1)
        return case.run(named, "triton", dropout=0.4)[0]

    split = dropped()
    monkeypatch.setattr(forward, "_count_splits", lambda *_: 1)
    ran.clear()
    assert_agrees(split, dropped())
    assert "merge_kernel" not in ran


@pytest.mark.parametrize("splits", [1, 3])
def test_results_lie_as_the_inputs_do(splits: int, monkeypatch):
    """With the heads inside the tokens, and where parts of the keys are merged too."""
    from relpos.ops.triton import forward

    monkeypatch.setattr(forward, "_count_splits", lambda *_: splits)
    case = replace(DECODING, batch=2, keys=70, rel_width=4, terms="keys values")
    named = case.inputs(dtype=FLOAT)
    heads = ("q", "k", "v", "q_rel")
    named |= {name: test_result_layout.with_heads_inside(named[name]) for name in heads}
    found, wanted = (case.results(named, backend) for backend in ("triton", "reference"))
    assert_agrees(found, wanted)
    for name in ("output", *heads):
        assert test_result_layout.has_heads_inside(found[name]), name


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (0, 3), (3, 0)])
@pytest.mark.parametrize("layout", sorted(test_result_layout.LAYOUTS))
def test_a_trace_is_told_how_results_lie(layout: str, queries: int, keys: int):
    from relpos.ops.triton.ops import TRITON

    test_result_layout.check_what_a_trace_is_told(TRITON, layout, queries, keys)


@pytest.mark.parametrize(
    ("settings", "splits"), [({}, 2), ({"window": (9, None)}, 1), ({"queries": 70}, 1)]
)
def test_how_often_keys_are_split(settings: dict, splits: int, monkeypatch):
    """Into parts of four tiles at least, until each of two processors has two programs."""
    from relpos.ops.triton import forward, tuning

    counted, count = [], forward._count_splits
    monkeypatch.setattr(tuning, "processors", lambda device: 2)
    monkeypatch.setattr(
        forward, "_count_splits", lambda *call: counted.append(count(*call)) or counted[-1]
    )
    case = replace(DECODING, **settings)
    case.run(case.inputs(dtype=FLOAT), "triton")
    assert counted == [splits]


@its_tiles
@pytest.mark.slow
@pytest.mark.parametrize(("m", "n"), [(64, 64), (64, 32), (32, 32), (128, 64)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.costly(2)
def test_tiles_of_other_shapes_give_the_same(m: int, n: int, causal: bool, monkeypatch):
    """Those of a GPU: with more queries than keys, rows differ in their blocks of the shear."""
    from relpos.ops.triton import launch
    from relpos.ops.triton.tuning import TileShape

    monkeypatch.setattr(launch, "tile_shapes", lambda *_: [TileShape(m, n, 4, 1)])
    case = Case(
        batch=1, heads=2, groups=1, queries=150, keys=170, causal=causal, table_window=(60, 40),
        table_heads=2,
    )  # fmt: skip
    named = case.inputs(dtype=FLOAT)
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


@its_tiles
@pytest.mark.slow
@pytest.mark.parametrize("other", [None, "forward", "dq", "dkdv"])
def test_rows_of_a_grid_may_be_tiles_of_some_kernels_alone(other: str | None, monkeypatch):
    """Where a tile does not fit into memory, a kernel takes a smaller one."""
    from relpos.ops.triton import launch
    from relpos.ops.triton.tuning import TileShape

    def shapes(kernel: str, call: Any) -> list[TileShape]:
        return [TileShape(64, 32 if kernel == other else call.traits.row_tile_width, 4, 1)]

    monkeypatch.setattr(launch, "tile_shapes", shapes)
    case = GridCase(shape=(4, 37), prefix=3, terms="keys", heads=2, groups=1, scale=0.4)
    named = case.inputs(dtype=FLOAT)
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


@pytest.mark.parametrize("terms", ["bias", "keys"])
@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-50, 0.125])
def test_any_scale_is_right_with_an_infinite_bias_too(scale: float, terms: str):
    case = replace(CASES["causal"], batch=1, terms=terms, scale=scale)
    named = case.inputs(dtype=FLOAT)
    if terms == "bias":
        named["bias"][:, :2] = -torch.inf
        named["bias"][:, 2] = -1e38
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


@pytest.mark.parametrize("far", [2**59, -(2**59)])
def test_queries_may_be_as_far_off_as_the_tables_are(far: int):
    x, rows = torch.randn(1, 1, 3, 8), torch.randn(1, 4, 8)
    near, away = (
        attention(
            x, x, x, Terms(keys=OffsetTable(rows, first)), query_start=start, backend="triton"
        )
        for first, start in ((-2, 1), (-2 - far, 1 + far))
    )
    assert_agrees(near, away)


def test_documents_may_have_any_number():
    case = replace(CASES["documents"], batch=1)
    named = case.inputs(dtype=FLOAT)
    far = named | {"documents": named["documents"] * 2**32 + 2**40}
    assert_agrees(case.run(far, "triton"), case.run(named, "triton"))


def test_nothing_flows_back_from_a_row_without_keys():
    """Whatever its own gradient is: that of logaddexp of two -inf is NaN."""
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    seen = torch.tensor([True, True, False, True]).view(1, 1, 4, 1)
    _, lse = attention(q, q.detach(), q.detach(), mask=seen, backend="triton", return_lse=True)
    gradient = torch.ones_like(lse)
    gradient[..., 2] = torch.nan
    (slope,) = torch.autograd.grad(lse, q, gradient)
    assert slope.isfinite().all()
    assert slope[..., 2, :].eq(0).all()


def test_what_it_cannot_take_is_refused_in_words():
    wide = GridTerms((300, 300))
    x = torch.zeros(1, 1, 90000, 1)
    with pytest.raises(BackendError, match="triton: its grids have at most 512 coordinates"):
        attention(x, x, x, wide, backend="triton")
    for dtype, width, reason in (
        (torch.float64, 8, "float64"),
        (torch.float32, 257, "at most 256 wide"),
    ):
        q = torch.zeros(1, 1, 3, width, dtype=dtype)
        with pytest.raises(BackendError, match=f"triton: .*{reason}"):
            attention(q, q, q, backend="triton")


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 4)])
def test_no_pair_at_all_gives_zeros(shape: tuple[int, ...]):
    q = torch.ones(shape, requires_grad=True)
    k = torch.zeros(shape[0], 2, 0 if shape[2] == 3 and shape[0] else 3, 4)
    rows = torch.zeros(1, 3, 4, requires_grad=True)
    output = attention(q, k, k, Terms(keys=OffsetTable(rows, 0)), backend="triton")
    assert torch.equal(output, torch.zeros(shape))
    output.sum().backward()
    assert torch.equal(rows.grad, torch.zeros(1, 3, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("terms", "width", "memory", "fits"),
    [
        ("keys", 129, 99, True), ("keys values", 128, 99, True), ("keys values", 129, 99, False),
        ("keys values", 129, 163, True),
    ],
)  # fmt: skip
def test_wide_float32_needs_room(terms: str, width: int, memory: int, fits: bool, monkeypatch):
    from relpos.ops.triton import entry

    monkeypatch.setattr(entry, "_INTERPRETED", False)
    monkeypatch.setattr(entry, "program_memory", lambda _: memory << 10)
    case = Case(batch=1, terms=terms, width=width, rel_width=16)
    (inputs,) = test_parts.calls(case, case.inputs(dtype=FLOAT), [0], 0.0)
    assert (entry._too_wide(inputs) is None) == fits


@pytest.mark.parametrize("compiler", [True, False])
def test_without_a_compiler_it_is_unavailable_in_words(compiler: bool, monkeypatch):
    """Triton needs one once for a machine: where it has what it made, it runs all the same."""
    from triton.runtime import driver

    from relpos.ops.triton import entry

    class Driver:
        @property
        def utils(self) -> None:
            raise RuntimeError("Failed to find C compiler.\nPlease specify")

    entry._try_its_launcher.cache_clear()
    monkeypatch.setattr(entry, "_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(entry.shutil, "which", lambda name: name if compiler else None)
    monkeypatch.setattr(entry.Path, "exists", lambda _: True)  # Python's headers
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(driver, "_active", Driver())
    reason = backends()["triton"]
    entry._try_its_launcher.cache_clear()
    assert reason == (
        None
        if compiler
        else "Triton has nothing to compile its launcher with, a C compiler and Python's headers: "
        "Failed to find C compiler."
    )


@pytest.mark.slow
@pytest.mark.no_typecheck
def test_whether_there_is_a_compiler_is_no_part_of_a_graph():
    from relpos.ops.triton import entry

    def compiled(x: Tensor) -> Tensor:
        return x + (1 if entry._without_a_compiler() is None else 2)

    x = torch.zeros(2)
    assert torch.equal(torch.compile(compiled, fullgraph=True, backend="eager")(x), compiled(x))


@pytest.mark.slow
def test_triton_is_imported_when_the_op_first_runs():
    script = """
import sys, torch, relpos
relpos.backends()
q = torch.zeros(1, 1, 3, 8, device="cuda" if torch.cuda.is_available() else "cpu")
relpos.attention(q, q, q)
assert "triton" not in sys.modules
relpos.attention(q, q, q, backend="triton")
assert "triton" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that is not asked for as zeros is NaN."""
    new_empty, empty_like = torch.Tensor.new_empty, torch.empty_like

    def filled(x: torch.Tensor) -> torch.Tensor:
        return x.fill_(torch.nan) if x.is_floating_point() else x

    monkeypatch.setattr(
        torch.Tensor, "new_empty",
        lambda x, *size, **options: filled(new_empty(x, *size, **options)),
    )  # fmt: skip
    monkeypatch.setattr(torch, "empty_like", lambda x, **options: filled(empty_like(x, **options)))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    "name",
    [
        "keys", "values", "bias", "queries per head", "grouped", "zero beyond, one row",
        "several row blocks", "joint beside tables",
    ],
)  # fmt: skip
@pytest.mark.costly(2)
def test_what_is_not_written_is_not_read(name: str):
    case: Case | GridCase
    case = shortened(CASES[name]) if name in CASES else replace(GRID_CASES[name], batch=1)
    assert_agrees(computed(case, 0, FLOAT, "triton"), computed(case, 0, FLOAT, "reference"))


IN_TWO = {
    name: case
    for name, case in CASES.items()
    if set(case.terms.split()) - {"bias"} and not (case.documents or case.ranges)
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in IN_TWO
])  # fmt: skip
@pytest.mark.costly(4)
def test_dq_in_two_launches_is_the_same(name: str, monkeypatch):
    """The ends of the tables first, then what lies between; sums of the first are NaN before."""
    from relpos.ops.triton import backward, launch

    case = shortened(IN_TWO[name])
    walked, run_programs = [], launch.run_programs

    def noted(kernel: Any, *arguments: Any, **options: Any) -> None:
        if kernel.fn.__name__ == "dq_kernel":
            walked.append((options["WALKS_ENDS"], options["WALKS_BAND"]))
        run_programs(kernel, *arguments, **options)

    monkeypatch.setattr(launch, "run_programs", noted)
    monkeypatch.setattr(backward, "_KEYS_OF_TWO_LAUNCHES", 0)
    assert_agrees(computed(case, 0, FLOAT, "triton"), computed(case, 0, FLOAT, "reference"))
    assert walked == [(True, False), (False, True)]


@pytest.mark.parametrize("wanted", ["keys", "queries values", "q", "k", "q_rel", "q_rel keys"])
@pytest.mark.costly(3)
def test_dq_in_two_launches_finds_what_is_wanted_alone(wanted: str, monkeypatch):
    from relpos.ops.triton import backward

    monkeypatch.setattr(backward, "_KEYS_OF_TWO_LAUNCHES", 0)
    case = Case(
        batch=1, heads=4, groups=2, queries=40, keys=70, terms="keys queries values",
        table_window=(9, 7), rel_width=6 if "q_rel" in wanted else None,
    )  # fmt: skip
    found = {}
    for backend, dtype in (("triton", FLOAT), ("reference", torch.float64)):
        named = cast(cast(case.inputs(3), FLOAT), dtype)
        leaves = [named[name].requires_grad_() for name in wanted.split()]
        output, _ = case.run(named, backend)
        gradients = torch.autograd.grad(output.square().sum(), leaves)
        found[backend] = dict(zip(wanted.split(), gradients, strict=True))
    assert_agrees(found["triton"], found["reference"])


@pytest.mark.parametrize("name", ["per head", "softcap", "documents", "grouped", "additive"])
@pytest.mark.costly(2)
def test_parts_are_as_one_call(name: str):
    case = replace(CASES[name], batch=1)
    named = case.inputs(dtype=FLOAT)
    expected = case.results(named, "triton")
    assert_agrees(test_parts.together(case, named, "triton", [0, 11, 12]), expected)


def test_parts_read_what_torch_negates_when_it_is_read():
    from relpos.ops.triton import entry

    case = CASES["per head"]
    (inputs,) = test_parts.calls(case, case.inputs(dtype=FLOAT), [0], 0.0)
    negated = replace(inputs, q=torch._neg_view(-inputs.q))
    assert negated.q.is_neg()
    found, wanted = (entry.part(x).output for x in (negated, inputs))
    assert torch.equal(found, wanted)


def test_parts_drop_what_one_call_drops():
    test_parts.test_parts_drop_what_one_call_drops("triton", "per head")
