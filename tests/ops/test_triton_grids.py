"""The ways in which the triton backend comes by a grid's numbers: each gives the same."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from relpos import GridTerms, OffsetTable, Terms, attention, backends
from tests.ops.agreement import assert_agrees
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
    "a number for each pair": ("specialize", "_MOST_MULTIPLIED", 0),
    "the table of the joint bias": ("entry", "with_written_bias", lambda inputs: inputs),
}


def agrees(case: GridCase) -> None:
    named = case.inputs(dtype=FLOAT)
    assert_agrees(*(case.results(named, backend) for backend in ("triton", "reference")))


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls take that way, with plans of their own."""
    module, name, value = WAYS[way]
    monkeypatch.setattr(import_module(f"relpos.ops.triton.{module}"), name, value)
    plans = import_module("relpos.ops.triton.call_plan")
    monkeypatch.setattr(plans, "_plans", plans.Kept())


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *(("tiles that are rows", x) for x in GRID_CASES if x.startswith("long rows")),
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
def test_a_way_that_other_sizes_take_gives_the_same(way: str, name: str, monkeypatch):
    take(way, monkeypatch)
    agrees(GRID_CASES[name])


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


@pytest.mark.parametrize("sign", [1, -1])
def test_logits_along_an_axis_may_be_larger_than_float16(sign: int):
    """Of 80000 at one offset: products with marks must stay finite."""
    q = torch.full((1, 1, 9, 16), 200.0, device=DEVICE)
    v = torch.randn(1, 1, 9, 16, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    rows = torch.zeros(1, 5, 16, device=DEVICE)
    rows[0, 1] = 100.0 * sign

    def found(dtype: torch.dtype, backend: str) -> Tensor:
        axes = (Terms(keys=OffsetTable(rows.to(dtype), -2)),) * 2
        x = (x.to(dtype) for x in (q, torch.zeros_like(q), v))
        return attention(*x, GridTerms((3, 3), axes), backend=backend)

    exact = found(torch.float64, "reference")
    assert (found(torch.float16, "triton").double() - exact).abs().max() < 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("heads", [1, 2])
def test_heads_share_tiles_of_a_grids_logits(heads: int, dtype: torch.dtype, monkeypatch):
    """More sequences and heads than one tile has room for, along axes of 3 and 5 tokens."""
    case = GridCase(
        shape=(3, 5), prefix=1, batch=9, terms="keys", table_heads=heads, width=8, value_width=8
    )
    named = case.inputs(dtype=dtype)
    exact = case.results({name: x.double() for name, x in named.items()}, "reference")
    found = case.results(named, "triton")
    usual = case.results(named, "reference")
    for name, x in found.items():
        most = (usual[name].double() - exact[name]).abs().max()
        eps = torch.finfo(dtype).eps * exact[name].abs().max().clamp(min=1)
        assert (x.double() - exact[name]).abs().max() <= 2 * (most + 8 * eps), name


JOINT = replace(GRID_CASES["joint_bias"], shape=(3, 4), batch=4, width=16, value_width=16)


def written(case: GridCase, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> bool:
    """Whether a call's joint bias is written out; it is right either way."""
    module = import_module("relpos.ops.triton.written_bias")
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
