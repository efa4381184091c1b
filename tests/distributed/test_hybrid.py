"""Heads along one dimension of a mesh and keys along the other, against one process."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import relpos.distributed as cut
from relpos import BackendError, GridTerms, Terms, attention
from relpos.distributed import ContextParallel, HeadParallel
from relpos.layers import MultiheadAttention
from relpos.positions import Rotary, Shaw
from tests.distributed.cut import check_case, check_float32, relative_error, world
from tests.distributed.test_adapted import arguments, made
from tests.distributed.test_attention import DROPPED, LAYOUTS, WIDE, check_autocast
from tests.distributed.test_context_parallel import check_blocks
from tests.distributed.test_failures import fails
from tests.ops.agreement import cast
from tests.ops.cases import CASES, Case, any_case
from tests.ops.grid_cases import GRID_CASES, GridCase

AnyCase = TypeVar("AnyCase", Case, GridCase)
OUTER = ("gather", "ring")
SHAPES = ((2, 2), (1, 4), (4, 1))


def mesh_of(shape: tuple[int, ...] = (2, 2)) -> DeviceMesh:
    """Made once for each shape, as programs do."""
    if shape not in _MESHES:
        names = ("outer", "inner") if len(shape) == 2 else ("outer", "inner", "tp")
        _MESHES[shape] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return _MESHES[shape]


_MESHES: dict[tuple[int, ...], DeviceMesh] = {}


def enough_heads(case: AnyCase, least: int = 4) -> AnyCase:
    """The case, with heads for as many inner ranks."""
    if case.heads >= least:
        return case
    groups = case.groups if least % case.groups == 0 else 1
    return replace(case, heads=least, groups=groups, table_heads=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", OUTER)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.costly(30)
def test_a_mesh_of_two_dimensions_is_as_one_process(four, name: str, method: str, layout: str):
    four.run(_check, enough_heads(CASES[name], 2), method, layout, (2, 2))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", [*OUTER, "auto", "heads"])
@pytest.mark.parametrize("name", WIDE)
@pytest.mark.costly(30)
def test_whatever_the_shape_of_the_mesh(four, name: str, method: str, shape: tuple[int, ...]):
    four.run(_check, WIDE[name], method, "zigzag", shape)


@given(
    case=any_case(), method=st.sampled_from([*OUTER, "auto"]), layout=st.sampled_from(LAYOUTS),
    key_layout=st.sampled_from([None, *LAYOUTS, "whole"]), shape=st.sampled_from(SHAPES),
    check=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_case(four, case: Case, method, layout, key_layout, shape, check):
    even = case.queries % 8 == 0 and case.keys % 8 == 0
    four.run(_check, enough_heads(case), method, layout, shape, key_layout, check or not even)


@given(
    case=any_case(longest=9), method=st.sampled_from(OUTER), layout=st.sampled_from(LAYOUTS),
    key_layout=st.sampled_from([None, *LAYOUTS, "whole"]), shape=st.sampled_from(SHAPES),
)  # fmt: skip
@settings(max_examples=60, deadline=None, derandomize=True)
def test_ranks_may_have_few_tokens_or_none(four, case: Case, method, layout, key_layout, shape):
    four.run(_check, enough_heads(case), method, layout, shape, key_layout)


def _check(rank, size, case, method, layout, shape, key_layout=None, check=True) -> dict[str, int]:
    # One number of a mask on every rank: of its key, or of its query?
    one_each = case.queries in range(2, size + 1) and case.keys in range(2, size + 1)
    if case.mask is not None and one_each:
        case = replace(case, mask=None)
    return check_case(
        rank, size, case, method, layout, key_layout, group=mesh_of(shape), check=check
    )


@pytest.mark.parametrize("method", OUTER)
@pytest.mark.parametrize("name", ["per head", "several row blocks, causal", "documents", "window"])
def test_the_native_kernel_is_within_the_budget_of_one_device(four, name: str, method: str):
    four.run(_check_native, enough_heads(CASES[name], 2), method)


def _check_native(rank, size, case, method) -> None:
    check_float32(rank, size, case, method, "native", group=mesh_of())


@pytest.mark.parametrize("method", OUTER)
def test_what_travels_is_what_the_formula_says(four, method: str):
    """With 64 tokens on 4 ranks, 8 query and 4 key heads, in float64."""
    case = replace(
        CASES["per head"], heads=8, groups=4, table_heads=8, queries=64, keys=64, causal=True
    )
    b, n, d, dv = case.batch, 16, case.width, case.value_width
    inner, outer, sizes = 2, 2, 8
    # `heads` of 2 ranks, with the log-sum-exp, one number of each row.
    tokens = b * n * (inner - 1) // inner * sizes
    exchanged = tokens * (8 * (d + dv) + 4 * (d + dv) + 8)
    # and a ring, or a gathering, of 2 ranks, with as many times the tokens and part of the heads.
    keys = (outer - 1) * b * (4 // inner) * (n * inner) * (d + dv) * sizes
    for sent in four.run(_check, case, method, "zigzag", (2, 2)):
        assert sent["forward all-to-all"] == exchanged
        assert sent["both all-to-all"] == 2 * exchanged
        assert sent[f"forward {method}"] == keys
        assert sent[f"both {method}"] == 2 * keys
        gradients = 2 * keys if method == "ring" else keys
        assert sent["both ring gradients" if method == "ring" else "both scatter"] == gradients


@pytest.mark.parametrize("name", [name for name, x in GRID_CASES.items() if not x.axis_ranges][:4])
def test_grids_are_computed_by_heads_on_all_ranks(four, name: str):
    case = GRID_CASES[name]
    four.run(_check, enough_heads(case), "auto", "zigzag", (2, 2))


@pytest.mark.parametrize("method", OUTER)
def test_dropout_is_that_of_one_device(four, method: str):
    case = DROPPED
    named = cast(case.inputs(), torch.float32)
    torch.manual_seed(3)
    expected = attention(
        *(named[name] for name in "qkv"), Terms(**case.tables(named)), dropout=0.4, backend="native"
    )
    for found in four.run(_dropped, case, method):
        bound = case.keys * torch.finfo(torch.float32).eps
        assert (found - expected).abs().max() <= bound * expected.abs().max().clamp(min=1)


def _dropped(rank, size, case, method) -> torch.Tensor:
    named, mesh = cast(case.inputs(), torch.float32), mesh_of()
    q, k, v = (cut.shard(named[name], mesh, dim=2) for name in "qkv")
    torch.manual_seed(3)
    output = cut.attention(
        q, k, v, Terms(**case.tables(named)), group=mesh, method=method, dropout=0.4,
        backend="native",
    )  # fmt: skip
    return cut.unshard(output, mesh, dim=2)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("method", OUTER)
def test_an_encoder_and_a_decoder_are_as_in_one_process(four, method: str, checkpointed: bool):
    four.run(_check_blocks, method, checkpointed)


def _check_blocks(rank, size, method, checkpointed) -> None:
    check_blocks(rank, size, method, checkpointed, group=mesh_of())


@pytest.mark.parametrize("name", ["T5", "DeBERTa"])
def test_an_adapted_model_is_as_in_one_process(four, name: str):
    four.run(_check_adapted, name)


def _check_adapted(rank, size, name) -> None:
    mesh = mesh_of()
    whole, inputs = made(name), arguments(name)
    expected = whole(**inputs)[0]
    style = ContextParallel()
    model = style.apply_to(made(name), mesh)
    found = model(**{key: cut.shard(x, mesh) for key, x in inputs.items()})[0]
    assert relative_error(found, cut.shard(expected, mesh)) <= 1e-12
    found = style.remove_from(model)(**inputs)[0]
    assert relative_error(found, expected) <= 1e-12


@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 2, 2)])
@pytest.mark.parametrize("method", OUTER)
def test_layers_whose_heads_are_cut_along_a_third_dimension(four, shape, method: str):
    four.run(_check_three, shape, method)


def _check_three(rank, size, shape, method) -> None:
    mesh = mesh_of(shape)
    torch.manual_seed(0)
    layer = MultiheadAttention(16, 4, position=Shaw(4, 3, 4), num_kv_heads=2, dropout=0.3).double()
    x = torch.randn(2, 13, 16, dtype=torch.float64)
    alone = distributed.new_group([rank], use_local_synchronization=True)
    one = ContextParallel(method="ring").apply_to(deepcopy(layer), alone)
    torch.manual_seed(6)
    expected = one(x, x, x, need_weights=False)[0]
    parallel = HeadParallel()._apply(deepcopy(layer), mesh["tp"])
    tokens = mesh["outer", "inner"]
    ContextParallel(method=method).apply_to(parallel, tokens)
    torch.manual_seed(6)
    own = cut.shard(x, tokens)
    found = parallel(own, own, own, need_weights=False)[0]
    assert relative_error(found, cut.shard(expected, tokens)) <= 1e-12


def test_what_is_refused_says_so(four):
    four.run(_refused)


def _refused(rank, size) -> None:
    mesh = mesh_of()
    x = torch.zeros(1, 4, 2, 4)
    with pytest.raises(ValueError, match="no more ranks along its last dimension than there are"):
        cut.attention(x[:, :1], x[:, :1], x[:, :1], group=mesh, method="ring")
    terms = GridTerms((2, 4), (Terms(), Terms()))
    with pytest.raises(BackendError, match="'ring' does not support GridTerms"):
        cut.attention(x, x, x, terms, group=mesh, method="ring")
    with pytest.raises(ValueError, match=r"'heads' must have .* do with 2, one for each along the"):
        cut.attention(x[:, :2], x[:, :2], x[:, :2], group=mesh, method="heads")
    other = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("a", "b"))
    with pytest.raises(ValueError, match=r"ascend along the last .*, got \[\[0, 2\], \[1, 3\]\]"):
        cut.attention(x, x, x, group=other)
    with pytest.raises(ValueError, match=r"must be a mesh of one dimension or two, such as mesh"):
        cut.shard(x, mesh_of((2, 1, 2)))
    with pytest.raises(ValueError, match="must be a mesh of one dimension, such as mesh"):
        HeadParallel()._apply(MultiheadAttention(8, 4), mesh)
    flat = world()
    with pytest.raises(ValueError, match=r"group must be the same on every rank of the group, got"):
        cut.attention(x, x, x, group=flat if rank == 2 else mesh)
    with pytest.raises(ValueError, match="module must have a relpos"):
        ContextParallel().apply_to(nn.Linear(2, 2), mesh)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("method", OUTER)
def test_a_rank_that_fails_tells_all_others(four, method: str, backward: bool):
    told = "attention: rank 1 of 4 failed: MemoryError: no room"
    found = four.run(_fails, method, backward)
    assert found == [f"ExchangeError: {told}" if n != 1 else "MemoryError: no room" for n in
                     range(4)]  # fmt: skip


def _fails(rank, size, method, backward) -> str:
    return fails(rank, size, method, backward, failing=1, group=mesh_of())


def test_autocast_is_that_of_the_op(four):
    four.run(_autocast)


def _autocast(rank, size) -> None:
    check_autocast(rank, size, OUTER, mesh_of())


def test_a_layer_with_rotary_positions_trains(four):
    losses = four.run(_train)
    assert len({tuple(x) for x in losses}) == 1
    assert losses[0][-1] < losses[0][0]


def _train(rank, size) -> list[float]:
    mesh = mesh_of()
    torch.manual_seed(0)
    layer = MultiheadAttention(16, 4, position=Rotary(4))
    x, target = torch.randn(2, 2, 24, 16)
    parallelize_module(layer, mesh, ContextParallel())
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        own = cut.shard(x, mesh)
        loss = (
            layer(own, own, own, need_weights=False)[0] - cut.shard(target, mesh)
        ).square().sum() / x.numel()
        loss.backward()
        for parameter in layer.parameters():
            distributed.all_reduce(parameter.grad)
        optimizer.step()
        total = loss.detach()
        distributed.all_reduce(total)
        losses.append(round(total.item(), 6))
    assert world().size() == size
    return losses


def test_a_mesh_needs_no_names_and_no_process_but_its_own(four):
    four.run(_part_of_the_processes)


def _part_of_the_processes(rank, size) -> None:
    x = torch.randn(1, 2, 9, 4, generator=torch.Generator().manual_seed(0)).double()
    mesh = DeviceMesh("cpu", [[0], [1], [3]])
    if rank == 2:
        with pytest.raises(ValueError, match="must have this process among its ranks, got a mesh"):
            cut.shard(x, mesh, dim=2)
    else:
        # Alone, as arithmetic is asked for.
        if rank == 0:
            assert cut.spans(9, mesh, "contiguous", rank=2) == [(6, 9)]
        own = cut.shard(x, mesh, dim=2)
        found = cut.attention(own, own, own, group=mesh, method="ring", causal=True)
        expected = cut.shard(attention(x, x, x, causal=True), mesh, dim=2)
        assert relative_error(found, expected) <= 1e-12
    # Groups that all make afterwards are the same ones.
    total = torch.ones(())
    distributed.all_reduce(total, group=distributed.new_group(list(range(size))))
    assert total == size


def test_shards_are_cut_in_compiled_functions(four):
    four.run(_compiled_shard)


def _compiled_shard(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    x = torch.arange(16.0).view(1, 16)
    found = torch.compile(lambda x: cut.shard(x, mesh) * 2, backend="eager")(x)
    assert torch.equal(found, 2 * cut.shard(x, mesh))
