"""Attention over parts of the keys, merged, is attention over all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relpos import OffsetTable, ShapeError, Terms, attention, backends, merge
from tests.ops.agreement import assert_agrees, cast
from tests.ops.backends import DTYPES, every_backend, every_blockwise
from tests.ops.cases import CASES, Case, any_case


def in_parts(case: Case, named: dict[str, Tensor], cuts: set[int], backend: str) -> tuple:
    """The parts' outputs and log-sum-exps, each with the keys from one cut to the next."""
    start = case.keys - case.queries if case.query_start is None else case.query_start
    ends = [0, *sorted(cut for cut in cuts if cut < case.keys), case.keys]
    parts = []
    for a, b in pairwise(ends):
        part = {name: named[name][:, :, a:b] for name in ("k", "v")}
        if named.get("mask") is not None and named["mask"].shape[3] > 1:
            part["mask"] = named["mask"][..., a:b]
        if "key_ranges" in named:
            part["key_ranges"] = named["key_ranges"] - a
        moved = replace(case, query_start=start - a)
        parts.append(moved.run(named | part, backend))
    outputs, lses = zip(*parts, strict=True)
    return merge(outputs, lses)


@every_backend
@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=any_case(), cuts=st.sets(st.integers(1, 23), max_size=3), seed=st.integers(0, 999))
def test_any_split_of_the_keys_merges_to_one_pass(
    backend: str, case: Case, cuts: set[int], seed: int
):
    case = replace(case, documents=None)
    named = case.inputs(seed, DTYPES[backend])
    assert_agrees(in_parts(case, named, cuts, backend), case.run(named, backend))


@pytest.mark.parametrize("name", ["all offsets", "per head", "causal", "additive, hiding"])
@every_backend
def test_gradients_of_a_merge_are_those_of_one_pass(name: str, backend: str):
    case = CASES[name]
    named = case.inputs(dtype=DTYPES[backend])
    named = {n: x.requires_grad_(x.is_floating_point()) for n, x in named.items()}
    leaves = [x for x in named.values() if x.requires_grad]

    def gradients(output: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        ramp = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
        total = (ramp * output).sum() + lse.masked_fill(lse == -torch.inf, 0).sum()
        return torch.autograd.grad(total, leaves)

    here = gradients(*in_parts(case, named, {5, 20}, backend))
    assert_agrees(here, gradients(*case.run(named, backend)))


def test_a_row_without_keys_in_any_part_gives_zeros():
    output, lse = torch.ones(1, 1, 1, 2, requires_grad=True), torch.full((1, 1, 1), -torch.inf)
    merged, total = merge([output, output], [lse, lse.clone().requires_grad_()])
    assert torch.equal(merged, torch.zeros_like(output))
    assert torch.equal(total, lse)
    merged.sum().backward()
    assert output.grad is not None
    assert output.grad.isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "far"), [(torch.float32, -1e9), (torch.float64, -1e18)], ids=["float32", "float64"]
)
def test_parts_far_below_0_have_shares_that_sum_to_1(dtype: torch.dtype, far: float):
    """What an additive mask of -1e9 leaves of three parts is their average, not their sum."""
    outputs = torch.arange(3, dtype=dtype).view(3, 1, 1, 1, 1)
    lses = torch.full((3, 1, 1, 1), far, dtype=dtype, requires_grad=True)
    merged, lse = merge(outputs, lses)
    assert_agrees(merged.flatten(), torch.ones(1, dtype=dtype))
    third = torch.full_like(lses, 1 / 3)
    assert_agrees(torch.autograd.grad(lse.sum(), lses, retain_graph=True)[0], third)
    slopes = (outputs.squeeze(-1) - 1) / 3
    assert_agrees(torch.autograd.grad(merged.sum(), lses)[0], slopes)


def test_what_stands_in_a_part_without_keys_reaches_no_gradient():
    output, lse = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, requires_grad=True)
    empty = torch.full((1, 1, 1), -torch.inf, requires_grad=True)
    merged, _ = merge([output, output * torch.nan], [lse, empty])
    for slope in torch.autograd.grad(merged.sum(), (lse, empty)):
        assert not slope.any()


@pytest.mark.no_typecheck  # as all that triton's interpreter runs
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, for triton
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("backend", ["reference", "tiled", "native", "triton"])
def test_where_a_part_is_no_number_the_whole_is_none(backend: str, wrong: float):
    if reason := backends()[backend]:
        pytest.skip(reason)
    q, k, v = (torch.randn(1, 2, 3, 16) for _ in range(3))
    mask = torch.zeros(3, 3)
    mask[0, 1] = wrong
    parts = [
        attention(q, k, v, mask=each, backend=backend, return_lse=True) for each in (mask, None)
    ]
    (output, lse), (merged, total) = parts[0], merge(*zip(*parts, strict=True))
    for x in (output, merged):
        assert x[:, :, 0].isnan().all()
        assert x[:, :, 1:].isfinite().all()
    for x in (lse, total):
        assert not x[:, :, 0].isneginf().any()
        assert not x[:, :, 0].isfinite().any()


@every_backend
def test_a_sink_is_one_line(backend: str):
    """A key of logit s without a value: as a column of the softmax, and from the log-sum-exp."""
    case = replace(CASES["keys"], terms="keys bias", heads=2, groups=2)
    named = case.inputs(dtype=DTYPES[backend])
    output, lse = case.run(named, backend)
    sink = torch.tensor([0.3, -1.0], dtype=output.dtype)[:, None]
    got = output * torch.sigmoid(lse - sink).unsqueeze(-1)

    named, sink = cast(named, torch.float64), sink.double()
    keys = torch.eye(case.keys, dtype=torch.float64).expand(2, 2, -1, -1)
    weights, lse = replace(case, value_width=case.keys).run(named | {"v": keys}, "reference")
    scores = weights.log() + lse.unsqueeze(-1)
    column = sink.unsqueeze(-1).expand(2, -1, case.queries, -1)
    with_sink = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    assert_agrees(got, with_sink @ named["v"])


def test_half_precision_keeps_its_dtype_and_a_float32_log_sum_exp():
    q = torch.randn(1, 2, 9, 8, dtype=torch.bfloat16)
    parts = [attention(q, x, x, return_lse=True, query_start=0) for x in (q[:, :, :4], q[:, :, 4:])]
    output, lse = merge(*zip(*parts, strict=True))
    assert (output.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    exact = attention(*[q.double()] * 3)
    assert (output - exact).abs().max() < 4 * torch.finfo(torch.bfloat16).eps


def test_the_first_part_decides_the_dtype_and_a_part_without_keys_may_hold_anything():
    output, lse = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1)
    nothing = torch.full((1, 1, 1, 2), torch.nan, dtype=torch.float64, requires_grad=True)
    merged, _ = merge([output, nothing], [lse, lse - torch.inf])
    assert merged.dtype == torch.float32
    assert torch.equal(merged, output)
    merged.sum().backward()
    assert nothing.grad is not None
    assert not nothing.grad.any()


@every_backend
def test_stacked_parts_are_parts(backend: str):
    case = CASES["keys"]
    output, lse = case.run(case.inputs(dtype=DTYPES[backend]), backend)
    merged = merge(torch.stack([output, output]), torch.stack([lse, lse]))
    assert_agrees(merged, (output, lse + torch.tensor(2.0).double().log().to(lse.dtype)))


@pytest.mark.no_typecheck
def test_parts_that_do_not_fit_are_named():
    output, lse = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3)
    with pytest.raises(ShapeError, match=r"merge: outputs and lses must have one entry .* 0 and 0"):
        merge([], [])
    with pytest.raises(ShapeError, match=r"merge: outputs must be \(b, h, i, dv\) with b=1"):
        merge([output, output[:, :, :2]], [lse, lse])
    with pytest.raises(ShapeError, match=r"merge: lses must be \(b, h, i\) with b=1, h=2, i=3"):
        merge([output], [lse[:, :, :2]])
    with pytest.raises(ShapeError, match=r"merge: outputs must be \(b, h, i, dv\), got"):
        merge([output[0]], [lse])
    with pytest.raises(ShapeError, match=r"merge: outputs must be floating point .* torch\.int64"):
        merge([output.long()], [lse])
    with pytest.raises(
        ShapeError, match="merge: lses must be on cpu as the first part is, got meta"
    ):
        merge([output], [lse.to("meta")])
    with pytest.raises(TypeError, match="merge: lses must be a tensor, got float"):
        merge([output], [0.0])


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_holds_no_parts_is_named():
    output, lse = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3)
    with pytest.raises(TypeError, match=r"^merge: outputs must be tensors, .* got None$"):
        merge(None, None)
    with pytest.raises(TypeError, match=r"^merge: lses must be tensors, .* got 0\.5$"):
        merge([output], 0.5)
    with pytest.raises(ShapeError, match=r"^merge: outputs must be \(n, b, h, i, dv\), got \(1, 2"):
        merge(output, lse)
    with pytest.raises(ShapeError, match=r"^merge: lses must be \(n, b, h, i\), got \(\)$"):
        merge([output], torch.tensor(0.0))
    with pytest.raises(ShapeError, match=r"^merge: outputs must be a dense .* torch\._mkldnn$"):
        merge(output[None].to_mkldnn(), [lse])
    with pytest.raises(ShapeError, match=r"^merge: lses must be a dense tensor, got a nested one$"):
        merge([output], torch.nested.nested_tensor([lse]))


@every_blockwise
def test_far_keys_by_plain_attention_and_near_ones_by_the_table(backend: str):
    """What the log-sum-exp is for: a clipped table is plain attention and a constant, far away."""
    case = replace(CASES["keys"], table_window=(4, 0), causal=True, batch=1)
    named = case.inputs(dtype=DTYPES[backend])
    q, k, v, rows = (named[name] for name in ("q", "k", "v", "keys"))
    whole = case.run(named, backend)
    terms = Terms(keys=OffsetTable(rows, -4))
    at = torch.arange(33)
    offset = at - at[:, None]
    near = attention(
        q, k, v, terms, mask=offset > -4, causal=True, backend=backend, return_lse=True
    )
    output, lse = attention(q, k, v, mask=offset <= -4, backend=backend, return_lse=True)
    constant = (q @ rows[:, 0].mT).squeeze(-1) / q.shape[-1] ** 0.5
    merged = merge([near[0], output], [near[1], lse + constant])
    assert_agrees(merged, whole)
