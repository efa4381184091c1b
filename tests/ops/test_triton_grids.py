"""The ways in which the triton backend comes by a grid's numbers: each gives the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from relpos import GridTerms, OffsetTable, Terms, attention, backends
from tests.ops.agreement import assert_agrees, assert_within_budget
from tests.ops.backends import ON_GPU
from tests.ops.grid_cases import GRID_CASES, GridCase

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.no_typecheck,
    pytest.mark.usefixtures("quick_interpreter"),
]

FLOAT = torch.float32
DEVICE = "cuda" if ON_GPU else "cpu"
#: By what each way is chosen, and what makes a call take it.
WAYS: dict[str, tuple[str, str, Any]] = {
    "tiles that are rows": ("call_plan", "_NARROWEST_ROW", 9),
    "a number for each pair": ("call_traits", "_MOST_MULTIPLIED", 0),
    "the table of the joint bias": ("entry", "with_dense_bias", lambda inputs: inputs),
}


def agrees(case: GridCase) -> None:
    named = case.inputs(dtype=FLOAT)
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


#: What each way shows in what a kernel is compiled for.
SHOWS: dict[str, Callable[[Any], bool]] = {
    "tiles that are rows": lambda spec: spec.grid_by_rows,
    "a number for each pair": lambda spec: spec.num_axes and not spec.axes_by_product,
    "the table of the joint bias": lambda spec: spec.has_joint_bias,
}


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have calls take that way, with plans of their own; what their kernels are compiled for."""
    specialize = import_module("relpos.ops.triton.specialize")
    seen, make = [], specialize._specialization
    monkeypatch.setattr(
        specialize, "_specialization", lambda *given: seen.append(make(*given)) or seen[-1]
    )
    module, name, value = WAYS[way]
    monkeypatch.setattr(import_module(f"relpos.ops.triton.{module}"), name, value)
    plans = import_module("relpos.ops.triton.call_plan")
    monkeypatch.setattr(plans, "_plans", plans.BoundedCache())
    return seen


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *(("tiles that are rows", x) for x in ("long rows", "long rows, prefix",
           "long rows, long prefix, pooled", "long rows, some hidden")),
        *(
            ("a number for each pair", x)
            for x in (
                "plane", "axes that differ", "axes that differ, pooled", "grouped", "softcap",
                "rows hidden by a bias", "space, prefix, joint", "documents and a mask",
            )
        ),
        *(
            ("the table of the joint bias", x)
            for x in ("joint_bias", "space, prefix, joint", "grouped", "scale", "line, joint")
        ),
    ],
)  # fmt: skip
@pytest.mark.costly(10)
def test_a_way_that_other_sizes_take_gives_the_same(way: str, name: str, monkeypatch):
    compiled_for = take(way, monkeypatch)
    agrees(GRID_CASES[name])
    assert any(map(SHOWS[way], compiled_for))


@pytest.mark.parametrize("tiles", [1, 2])
@pytest.mark.parametrize(
    "name",
    [
        "joint_bias", "space, prefix, joint", "line, joint", "grouped", "softcap", "documents",
        "additive", "window of one axis", "rows", "rows, causal", "rows, long prefix",
    ],
)  # fmt: skip
@pytest.mark.costly(4)
def test_a_joint_bias_learns_from_some_tiles_of_queries_at_a_time(
    name: str, tiles: int, monkeypatch
):
    """Wherever a tile begins in a line of the grid, or before the grid."""
    from relpos.ops.triton.tuning import TileShape

    case, module = GRID_CASES[name], import_module("relpos.ops.triton.joint_bias_gradient")
    keys = case.prefix + prod(case.shape)
    tile = TileShape(*(16, 16, 4, 1) if keys < 64 else (32, 16, 4, 1))
    for one in (module, import_module("relpos.ops.triton.launch")):
        monkeypatch.setattr(one, "tile_shapes", lambda *_: [tile])
    monkeypatch.setattr(module, "most_queries", lambda *_: tiles * tile.m + 3)
    seen, sums = [], module.pair_sums
    monkeypatch.setattr(
        module, "pair_sums",
        lambda *given, **named: seen.append(named["queries"]) or sums(*given, **named),
    )  # fmt: skip
    take("the table of the joint bias", monkeypatch)
    agrees(case)
    assert len(seen) == -(-keys // (tiles * tile.m))
    assert [n for some in seen for n in some] == list(range(keys))
    assert all(some.start % tile.m == 0 for some in seen)


@pytest.mark.parametrize("grid", [(7,), (3, 4), (1, 5), (5, 1), (2, 3, 4)])
def test_tokens_that_follow_each_other_are_boxes_of_a_grid(grid: tuple[int, ...]):
    from relpos.ops.triton.joint_bias_gradient import query_boxes

    tokens = torch.arange(prod(grid)).reshape(grid)
    for first in range(prod(grid) + 1):
        for end in range(first, prod(grid) + 1):
            found = [
                tokens[tuple(slice(a, a + n) for a, n in zip(corner, sizes, strict=True))].flatten()
                for corner, sizes in query_boxes(grid, first, end)
            ]
            assert all(x.numel() for x in found)
            assert [n for x in found for n in x.tolist()] == list(range(first, end))


@pytest.mark.parametrize("name", ["plane", "long rows", "axes that differ"])
def test_what_is_multiplied_has_a_column_for_each_coordinate(name: str, monkeypatch):
    """What a pass is compiled for says which way it went."""
    from relpos.ops.triton.prepared_call import PreparedCall

    seen, case = [], GRID_CASES[name]
    marks = PreparedCall._marks.func  # type: ignore[attr-defined]
    monkeypatch.setattr(
        PreparedCall, "_marks", property(lambda self: seen.append(marks(self)) or seen[-1])
    )
    agrees(case)
    assert seen
    of_keys, _ = seen[0]
    found = of_keys.ptr[:, : sum(case.shape)].reshape(-1, sum(case.shape))
    assert found.shape[0] == case.prefix + prod(case.shape)
    assert set(found.sum(1).tolist()) <= {0.0, float(len(case.shape))}
    assert (found[case.prefix :].sum(1) == len(case.shape)).all()
    assert not found[: case.prefix].any()


@pytest.mark.parametrize("causal", [False, True])
def test_coordinates_without_any_key_to_see_are_hidden_by_their_logits(causal: bool):
    """-inf along an axis: 0 times it, in a product, would be NaN."""
    case = replace(GRID_CASES["plane"], terms="keys bias", causal=causal, prefix=1)
    named = case.inputs(dtype=FLOAT)
    named["bias0"][:, 1::2] = -math.inf
    named["bias1"][:, ::3] = -math.inf
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))
    named["bias0"][:] = -math.inf  # of which nobody but the prefix is left
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


def large(factor: float, hidden: int | None, dtype: torch.dtype, backend: str) -> Tensor:
    """Keys' rows of about `factor` on a grid of 3 x 4; of the first axis, one may be -inf."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 12, 16, generator=draw).half().to(DEVICE) for _ in range(3))
    rows = [factor * torch.randn(1, 2 * n - 1, 16, generator=draw).half() for n in (3, 4)]
    biases = [torch.zeros(1, 2 * n - 1) for n in (3, 4)]
    if hidden is not None:
        biases[0][0, hidden] = -math.inf
    axes = tuple(
        Terms(
            keys=OffsetTable(x.to(DEVICE, dtype), 1 - n),
            bias=OffsetTable(bias.to(DEVICE, dtype), 1 - n),
        )
        for n, x, bias in zip((3, 4), rows, biases, strict=True)
    )
    x = (x.to(dtype) for x in (q, k, v))
    return attention(*x, GridTerms((3, 4), axes), backend=backend)


@pytest.mark.parametrize("hidden", [None, 1, 4])
@pytest.mark.parametrize("factor", [1.0, 300.0, 1e4])
def test_logits_along_an_axis_may_be_larger_than_float16(factor: float, hidden: int | None):
    """Of up to a million: products with marks stay finite, and know them apart."""
    assert_within_budget(
        large(factor, hidden, torch.float16, "triton"),
        large(factor, hidden, torch.float16, "reference"),
        large(factor, hidden, torch.float64, "reference"),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_finite_logits_hide_nothing_however_low_they_are(share: float, dtype: torch.dtype):
    """Where all are alike: the mean of the values."""
    lowest = share * torch.finfo(dtype).min
    v = torch.randn(1, 1, 6, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    q = torch.zeros_like(v)
    low = OffsetTable(torch.full((1, 1), lowest, dtype=dtype, device=DEVICE), 0)
    # A bias of one row is the same for all offsets.
    axes = (Terms(bias=low), Terms(bias=OffsetTable(torch.zeros_like(low.rows), 0)))
    found = attention(q, q, v, GridTerms((2, 3), axes), backend="triton")
    torch.testing.assert_close(found, v.mean(2, keepdim=True).expand_as(v), rtol=0, atol=2e-3)


@pytest.mark.parametrize("size", [1.0, 1e-5, 16000.0])
def test_gradients_of_a_grids_values_may_be_large_in_float16(size: float):
    """As with a loss that is scaled up."""
    case = GridCase(shape=(4, 4), terms="keys values", width=16, value_width=16)
    named = case.inputs(dtype=torch.float16)
    found = {}
    judges = {
        "ours": ("triton", torch.float16), "usual": ("reference", torch.float16),
        "exact": ("reference", torch.float64),
    }  # fmt: skip
    for judge, (backend, dtype) in judges.items():
        leaves = {name: x.to(dtype).requires_grad_() for name, x in named.items()}
        output, _ = case.run(leaves, backend)
        ramp = torch.linspace(-1, 1, output.numel()).view_as(output).to(output) * size
        found[judge] = torch.autograd.grad(output, list(leaves.values()), ramp)
    for ours, usual, exact in zip(*found.values(), strict=True):
        assert_within_budget(ours, usual, exact)


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_share_tiles_of_a_grids_logits(heads: int):
    """Of 16 bits: more than one tile has room for, along axes of 3 and 5 tokens."""
    case = GridCase(
        shape=(3, 5), prefix=1, batch=9, terms="keys", table_heads=heads, width=8, value_width=8
    )
    dtype = torch.float16
    named = case.inputs(dtype=dtype)
    exact = case.results({name: x.double() for name, x in named.items()}, "reference")
    found = case.results(named, "triton")
    usual = case.results(named, "reference")
    for name, x in found.items():
        assert_within_budget(x, usual[name], exact[name])


JOINT = replace(GRID_CASES["joint_bias"], shape=(3, 4), batch=4, width=16, value_width=16)


def written(case: GridCase, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> bool:
    """Whether a call's joint bias is written out; it is right either way."""
    module = import_module("relpos.ops.triton.dense_bias")
    seen, write = [], module._of_pairs
    monkeypatch.setattr(module, "_of_pairs", lambda *given: seen.append(1) or write(*given))
    agrees(replace(case, **changes))
    return bool(seen)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"prefix": 2}, {"shape": (12,)}, {"shape": (2, 3, 2), "table_heads": 1},
        {"terms": "keys queries values"}, {"causal": True}, {"window": ((1, 1), (0, 2))},
        {"documents": True}, {"ranges": True}, {"batch": 3, "heads": 4, "groups": 2,
        "table_heads": 4},
    ],
    ids=str,
)  # fmt: skip
def test_a_joint_bias_that_many_sequences_share_is_written_out(changes: dict, monkeypatch):
    assert written(JOINT, monkeypatch, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 1, "shape": (6, 7)},  # more numbers than the queries have
        {"softcap": 2.0}, {"mask": "pairs"}, {"mask": "additive"},
    ],
    ids=str,
)  # fmt: skip
def test_a_joint_bias_is_read_from_its_table_otherwise(changes: dict, monkeypatch):
    assert not written(JOINT, monkeypatch, **changes)


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_the_gradient_of_a_shared_mask_is_summed_in_parts(batch: int):
    draw = torch.Generator().manual_seed(0)
    shape = (batch, 2, 9, 16)
    leaves = [torch.randn(*shape, generator=draw).to(DEVICE).requires_grad_() for _ in range(3)]
    mask = torch.randn(1, 2, 9, 9, generator=draw).to(DEVICE).requires_grad_()
    found = []
    for backend in ("triton", "reference"):
        output = attention(*leaves, Terms(), mask=mask, backend=backend)
        found.append(torch.autograd.grad(output.square().sum(), [*leaves, mask]))
    assert_agrees(*found)


@pytest.mark.slow
def test_logits_of_a_grid_are_read_at_any_address():
    """Tokens so far apart that an address has more than 32 bits; what is between is not touched."""
    from relpos.ops.triton.axis_logits import axis_logits, axis_logits_gradients

    apart = 2**28
    memory = torch.empty(8 * apart + 64, dtype=torch.float16, device=DEVICE)
    near = torch.randn(1, 2, 9, 16, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    far = memory.as_strided(near.shape, (32, 16, apart, 1))
    far.copy_(near)
    rows = [torch.randn(1, 3, 3, 16).half().to(DEVICE) for _ in range(2)]
    logits = [axis_logits(x, rows, (3, 3), 0, 1.0) for x in (near, far)]
    assert torch.equal(*logits)
    gradients = [axis_logits_gradients(logits[0], x, rows, (3, 3), 0, 1.0) for x in (near, far)]
    for ours, theirs in zip(*gradients, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
