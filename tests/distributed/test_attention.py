"""The op over a cut sequence against one process: every case, method and layout, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed

import relpos.distributed as cut
from relpos import BackendError, OffsetTable, Terms, attention, backends
from tests.distributed.cut import check_case, check_float32, relative_error, world
from tests.ops.agreement import assert_within_budget, cast
from tests.ops.cases import CASES, Case, any_case
from tests.ops.grid_cases import GRID_CASES
from tests.ops.interpreter import make_quick
from tests.ops.results import ramp

METHODS = ("heads", "gather", "ring")
LAYOUTS = ("zigzag", "contiguous")
# For more ranks than most cases have heads.
WIDE = {
    "per head": replace(CASES["per head"], heads=4, groups=4, table_heads=4),
    "grouped": replace(CASES["grouped"], heads=8, groups=4),
    "fewer key heads than ranks": replace(CASES["per head"], heads=8, groups=2, table_heads=8),
    "uneven heads": replace(CASES["per head"], heads=6, groups=2, table_heads=6, causal=True),
    "fewer tokens than chunks": replace(CASES["per head"], heads=4, groups=2, table_heads=4,
                                        queries=5, keys=5),
    "causal": replace(CASES["several row blocks, causal"], heads=4, groups=4),
    "documents": replace(CASES["documents"], heads=4, groups=4),
    "ranges": replace(CASES["ranges"], heads=4, groups=4),
    "padding": replace(CASES["padding"], heads=4, groups=4),
    "window": replace(CASES["window"], heads=4, groups=4, queries=65, keys=65, causal=True),
    "q_rel": replace(CASES["per head"], heads=4, groups=4, table_heads=4, rel_width=3),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly(45)
def test_two_ranks_are_as_one_process(two, name: str, method: str, layout: str):
    two.run(check_case, CASES[name], method, layout)


@pytest.mark.parametrize("method", ["gather", "ring"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly(20)
def test_the_native_kernel_is_within_the_budget_of_one_device(two, name: str, method: str):
    two.run(check_float32, CASES[name], method, "native")


@pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"]))
@pytest.mark.skipif(torch.cuda.is_available(), reason="scripts/gpu_ranks.py tries it on the GPU")
@pytest.mark.parametrize("method", ["gather", "ring"])
@pytest.mark.costly(1)
def test_triton_is_within_the_budget_of_one_device(two, method: str):
    case = replace(CASES["per head"], queries=9, keys=9, causal=True)
    two.run(_check_triton, case, method)


def _check_triton(rank, size, case, method) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        check_float32(rank, size, case, method, "triton")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", WIDE)
@pytest.mark.costly(30)
def test_four_ranks_are_as_one_process(four, name: str, method: str, layout: str):
    four.run(check_case, WIDE[name], method, layout)


# How many ranks ahead and behind keys visit, of 4 ranks that have 17 tokens or 16 each.
WAYS = {
    "both": ({"window": (4, 4)}, "contiguous", (1, 1)),
    "both, further behind": ({"window": (3, 20)}, "contiguous", (1, 2)),
    "ahead": ({"window": (20, 0)}, "contiguous", (2, 0)),
    "behind": ({"window": (0, 4)}, "contiguous", (0, 1)),
    "all": ({"window": (20, 20)}, "contiguous", (3, 0)),
    "both, causal": ({"window": (6, None), "causal": True}, "zigzag", (1, 1)),
    "both, two runs": ({"window": (2, 5)}, "zigzag", (1, 1)),
    "all, two runs": ({"window": (12, 0)}, "zigzag", (3, 0)),
    "far from home": ({"window": (2, 2), "query_start": 40}, "contiguous", (2, 0)),
    "documents": ({"window": (4, 4), "documents": "runs, padded"}, "contiguous", (1, 1)),
    "padding": ({"window": (4, 4), "mask": "padding"}, "contiguous", (1, 1)),
}


@pytest.mark.parametrize("name", WAYS)
def test_keys_go_both_ways_round_a_ring_as_far_as_a_window_reaches(four, name: str):
    changes, layout, (ahead, behind) = WAYS[name]
    case = replace(CASES["window"], queries=67, keys=67, **changes)
    sent = four.run(check_case, case, "ring", layout)
    found = {kind: sum(of_rank[kind] for of_rank in sent) for kind in sent[0]}
    tokens = case.batch * case.keys * 8
    keys = case.groups * (case.width + case.value_width) * tokens
    beside = tokens * (case.documents is not None) + tokens // 8 * (case.mask is not None)
    assert found["forward ring"] == (ahead + behind) * (keys + beside)
    # Sums begin on the rank itself where they go ahead, and behind it where they go back.
    assert found["both ring gradients"] == (ahead + behind + (ahead > 0)) * keys


@pytest.mark.parametrize(
    "name", [name for name, case in GRID_CASES.items() if not case.axis_ranges]
)
def test_grids_by_heads_are_as_in_one_process(two, name: str):
    case = GRID_CASES[name]
    case = case if case.heads > 1 else replace(case, heads=2, groups=2)
    two.run(check_case, case, "heads", "zigzag")


@given(
    case=any_case(), method=st.sampled_from(METHODS), layout=st.sampled_from(LAYOUTS),
    key_layout=st.sampled_from([None, *LAYOUTS, "whole"]), check=st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_case_on_two_ranks(two, case: Case, method, layout, key_layout, check):
    if method == "heads" and case.heads < 2:
        case = replace(case, heads=2, groups=2, table_heads=min(case.table_heads, 1))
    even = case.queries % 4 == 0 and case.keys % 4 == 0
    two.run(_check_few, case, method, layout, key_layout, check or not even)


@given(
    case=any_case(longest=6), method=st.sampled_from(METHODS), layout=st.sampled_from(LAYOUTS),
    key_layout=st.sampled_from([None, *LAYOUTS, "whole"]),
)  # fmt: skip
@settings(max_examples=80, deadline=None, derandomize=True)
def test_ranks_may_have_one_token_or_none(three, case: Case, method, layout, key_layout):
    case = replace(case, heads=6, groups=case.groups, table_heads=min(case.table_heads, 1))
    three.run(_check_few, case, method, layout, key_layout)


def _check_few(rank, size, case, method, layout, key_layout, check=True) -> None:
    # One number of a mask on every rank: of its key, or of its query?
    one_each = case.queries in range(2, size + 1) and case.keys in range(2, size + 1)
    if case.mask is not None and one_each:
        case = replace(case, mask=None)
    check_case(rank, size, case, method, layout, key_layout, check=check)


@pytest.mark.parametrize("method", METHODS)
def test_cross_attention_has_keys_that_are_cut_otherwise(two, method: str):
    case = replace(CASES["more queries than keys"], documents=None)
    for layout, key_layout in (("zigzag", "contiguous"), ("contiguous", "zigzag")):
        two.run(check_case, case, method, layout, key_layout)


@pytest.mark.parametrize("method", METHODS)
def test_a_group_of_some_of_the_ranks(four, method: str):
    four.run(_in_pairs, CASES["causal"], method)


def _in_pairs(rank, size, case, method) -> None:
    pairs = [distributed.new_group([0, 2]), distributed.new_group([3, 1])]
    check_case(rank, size, case, method, "zigzag", group=pairs[rank % 2])


@pytest.mark.parametrize("method", METHODS)
def test_a_mesh_stands_for_its_group(four, method: str):
    four.run(_by_mesh, CASES["causal"], method)


def _by_mesh(rank, size, case, method) -> None:
    mesh = distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    check_case(rank, size, case, method, "zigzag", group=mesh["cp"])


@pytest.mark.parametrize("backend", ["tiled", "native"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.costly(2)
def test_dropout_is_the_same_for_any_number_of_ranks(one, two, four, method: str, backend: str):
    outputs = [
        pool.run(_dropped, method, layout, backend)[0]
        for pool in (one, two, four)
        for layout in LAYOUTS
    ]
    if backend == "native":
        # There it is also that of a call of one device, which draws the same seed.
        named = cast(DROPPED.inputs(), torch.float32)
        torch.manual_seed(3)
        terms, qkv = Terms(**DROPPED.tables(named)), (named[name] for name in "qkv")
        outputs.append({"output": attention(*qkv, terms, dropout=0.4, backend=backend)})
    dtype = torch.float64 if backend == "tiled" else torch.float32
    # Each sum has a rounding for each of its 65 keys at most, wherever it is cut.
    bound = DROPPED.keys * torch.finfo(dtype).eps
    for found in outputs[1:]:
        for name in found:
            x = outputs[0][name]
            assert (found[name] - x).abs().max() <= bound * x.abs().max().clamp(min=1), name
    without = two.run(_dropped, method, "zigzag", backend, 0.0)[0]
    assert not torch.allclose(outputs[0]["output"], without["output"])
    kept = two.run(_dropped, method, "zigzag", backend, 0.25)[0]["weights"] > 0
    assert abs(kept.double().mean().item() - 0.75) < 0.02


DROPPED = replace(CASES["per head"], heads=4, groups=4, table_heads=4, queries=65, keys=65)


def _dropped(rank, size, method, layout, backend, dropout=0.4) -> dict[str, torch.Tensor]:
    """The output, the gradients, and with the identity as values the weights, all whole."""
    case = DROPPED
    named = cast(case.inputs(), torch.float64 if backend == "tiled" else torch.float32)
    group = world()
    local = {n: cut.shard(x, group, layout, 2) if n in "qkv" else x for n, x in named.items()}
    local = {name: x.detach().requires_grad_() for name, x in local.items()}

    def attend(v: torch.Tensor, terms: Terms) -> torch.Tensor:
        torch.manual_seed(3)
        return cut.attention(
            local["q"], local["k"], v, terms, group=group, layout=layout, method=method,
            dropout=dropout, backend=backend,
        )  # fmt: skip

    output = attend(local["v"], Terms(**case.tables(local)))
    whole = ramp(cut.unshard(output.detach(), group, layout, 2))
    gradients = torch.autograd.grad(
        (output * cut.shard(whole, group, layout, 2)).sum(), list(local.values())
    )
    found = {"output": cut.unshard(output.detach(), group, layout, 2)}
    for name, x in zip(local, gradients, strict=True):
        if name in "qkv":
            found[name] = cut.unshard(x, group, layout, 2)
        else:
            found[name] = x.contiguous()
            distributed.all_reduce(found[name])
    eye = torch.eye(65, dtype=named["q"].dtype).expand(2, 4, -1, -1)
    tables = {n: t for n, t in case.tables(local).items() if n != "values"}
    weights = attend(cut.shard(eye, group, layout, 2), Terms(**tables))
    return found | {"weights": cut.unshard(weights.detach(), group, layout, 2)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_low_precision_is_within_the_budget_of_one_device(four, method: str, dtype):
    four.run(_low_precision, method, dtype)


def _low_precision(rank, size, method, dtype) -> None:
    case = replace(
        CASES["several row blocks, causal"], heads=4, groups=4, queries=310, table_heads=4
    )
    named = cast(case.inputs(), dtype)
    exact = case.results(cast(named, torch.float64), "reference", of_lse=False)
    reference = case.results(named, "reference", of_lse=False)
    group = world()
    local = {n: cut.shard(x, group, dim=2) if n in "qkv" else x for n, x in named.items()}
    local = {name: x.detach().requires_grad_() for name, x in local.items()}
    output = cut.attention(
        local["q"], local["k"], local["v"], Terms(**case.tables(local)), group=group,
        method=method, causal=True,
    )  # fmt: skip
    d_output = cut.shard(ramp(reference["output"]), group, dim=2)
    gradients = torch.autograd.grad((output * d_output).sum(), list(local.values()))
    assert output.dtype == dtype
    for name, x in (("output", output), *zip(local, gradients, strict=True)):
        found, wanted, about = x.detach(), exact[name], reference[name]
        if name in ("output", *"qkv"):
            wanted, about = (cut.shard(y, group, dim=2) for y in (wanted, about))
        else:
            total = found.double()
            distributed.all_reduce(total)
            found = total.to(dtype)
        assert_within_budget(found, about, wanted)


def test_autocast_is_that_of_the_op(two):
    two.run(check_autocast)


def check_autocast(rank, size, methods=METHODS, group=None) -> None:
    """That the output is that of one device under autocast, rounded once more."""
    group = group or world()
    x = torch.randn(1, 2, 16, 4, generator=torch.Generator().manual_seed(0))
    local = cut.shard(x, group, dim=2)
    table = OffsetTable(torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(1)), -1)
    for method in methods:
        with torch.autocast("cpu", torch.bfloat16):
            found = cut.attention(
                local, local, local, Terms(keys=table), group=group, method=method
            )
            whole = attention(x, x, x, Terms(keys=table))
        assert found.dtype == whole.dtype == torch.bfloat16
        # The output is rounded once more than its parts.
        rounding = torch.finfo(torch.bfloat16).eps
        assert relative_error(found, cut.shard(whole, group, dim=2)) <= rounding


@pytest.mark.parametrize("method", METHODS)
def test_second_derivatives_are_refused_in_words(two, method: str):
    two.run(_second_derivatives, method)


def _second_derivatives(rank, size, method) -> None:
    x = torch.zeros(1, 2, 4, 4).requires_grad_()
    output = cut.attention(x, x, x, group=world(), method=method)
    with pytest.raises(BackendError, match="second derivatives are not supported over several"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_graph_that_is_kept_gives_gradients_again(two, method: str):
    two.run(_kept_graph, method)


def _kept_graph(rank, size, method) -> None:
    x = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    output = cut.attention(x, x, x, group=world(), method=method, causal=True)
    first, again = (
        torch.autograd.grad(output.square().sum(), x, retain_graph=keep)[0]
        for keep in (True, False)
    )
    assert torch.equal(first, again)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(output.square().sum(), x)
    with torch.inference_mode():
        found = cut.attention(x, x, x, group=world(), method=method, causal=True)
    assert torch.equal(found, output)


def test_by_heads_ranks_may_use_different_results(two):
    two.run(_check_results_in_use)


def _check_results_in_use(rank, size) -> None:
    q, k, v = (torch.randn(1, 2, 8, 4, generator=generator(n)).double() for n in range(3))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    output, lse = attention(*whole, return_lse=True)
    # Rank 0 takes the output of its tokens, rank 1 the log-sum-exp.
    used = [output[:, :, first:end].sum() for first, end in cut.spans(8, world(), rank=0)]
    used += [lse[:, :, first:end].sum() for first, end in cut.spans(8, world(), rank=1)]
    expected = torch.autograd.grad(sum(used), whole)
    local = [cut.shard(x, world(), dim=2).requires_grad_() for x in (q, k, v)]
    results = cut.attention(*local, group=world(), method="heads", return_lse=True)
    found = torch.autograd.grad(results[rank].sum(), local)
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, cut.shard(other, world(), dim=2)) <= 1e-12


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
