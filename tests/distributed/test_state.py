"""The state of one device, given to a model on several: refused in words, or loaded."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

import relpos.distributed as cut
from relpos.distributed import ContextParallel, HeadParallel, load_full_state_dict
from relpos.layers import MultiheadAttention
from relpos.positions import T5Bias
from tests.distributed.cut import relative_error, world
from tests.distributed.test_head_parallel import cut_heads, example_input, example_model


def test_what_cannot_be_loaded_is_named_before_anything_is(two):
    two.run(_wrong_states)


def _wrong_states(rank, size) -> None:
    torch.manual_seed(0)
    whole = MultiheadAttention(8, 4)
    state = dict(whole.state_dict())
    cut_one = parallelize_module(
        copy.deepcopy(whole), init_device_mesh("cpu", (size,)), HeadParallel()
    )
    before = {name: x.to_local().clone() for name, x in cut_one.named_parameters()}
    for change, said in (
        ({"out_proj.bias": ...}, "got nothing for out_proj.bias"),
        ({"in_proj_weight": ...}, "got nothing for in_proj_weight"),
        ({"more": torch.zeros(1)}, "got more, which it has not"),
        ({"in_proj_weight": torch.zeros(8, 8)}, r"got \(8, 8\) for in_proj_weight of \(24, 8\)"),
        ({"in_proj_weight": None}, r"got None for in_proj_weight of \(24, 8\)"),
        ({"in_proj_weight": ..., "q_proj_weight": torch.zeros(8, 8)}, "nothing for k_proj_weight"),
        ({"out_proj.weight": torch.zeros(8, 4)}, r"got \(8, 4\) for out_proj.weight of \(8, 8\)"),
        ({"out_proj.weight": "a"}, r"got 'a' for out_proj.weight of \(8, 8\)"),
        ({"out_proj.weight": torch.zeros(8, 8, device="meta")}, "a meta tensor, which has no num"),
    ):
        given = {name: x for name, x in (state | change).items() if x is not ...}
        with pytest.raises(RuntimeError, match=f"must have the names and shapes of .*{said}"):
            load_full_state_dict(cut_one, given)
    for given, kind, said in (
        (None, TypeError, "state must be a mapping, got None"),
        ([1], TypeError, r"state must be a mapping, got \[1\]"),
        (
            {},
            RuntimeError,
            "state must have the names of the model, got none; full_state_dict gives it to rank 0",
        ),
    ):
        with pytest.raises(kind, match=f"load_full_state_dict: {said}"):
            load_full_state_dict(cut_one, given)  # type: ignore[arg-type]
    # On one rank alone.
    with pytest.raises(
        RuntimeError, match=r"got none|rank 1 of 2 failed: RuntimeError: .*got none"
    ):
        load_full_state_dict(cut_one, {} if rank else state)
    wrong = state | {"out_proj.bias": torch.zeros(9)}
    with pytest.raises(
        RuntimeError, match=r"got \(9,\) for out_proj.bias|rank 0 of 2 failed: Runt"
    ):
        load_full_state_dict(cut_one, state if rank else wrong)
    with pytest.raises(ValueError, match="from_rank_0 must be the same on every rank of the group"):
        load_full_state_dict(cut_one, state, from_rank_0=rank == 0)
    dtype = torch.float64 if rank else torch.float32
    with pytest.raises(ValueError, match=r"out_proj.bias must be the same .*float64'\) on rank 1"):
        load_full_state_dict(cut_one, state | {"out_proj.bias": torch.zeros(8, dtype=dtype)})
    with pytest.raises(TypeError, match="from_rank_0 must be True or False, got 1"):
        load_full_state_dict(cut_one, state, from_rank_0=1)  # type: ignore[arg-type]
    for name, x in cut_one.named_parameters():
        assert torch.equal(x.to_local(), before[name])
    load_full_state_dict(cut_one, state)


def test_the_state_of_rank_0_alone_is_taken_back(four):
    four.run(_from_rank_0)


def _from_rank_0(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, other = cut_heads(example_model(), mesh["tp"]), cut_heads(example_model(), mesh["tp"])
    for one in (model, other):
        for block in one.blocks:
            fully_shard(block, mesh=mesh["dp"])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    state = cut.full_state_dict(model)
    assert bool(state) == (rank == 0)
    with pytest.raises(RuntimeError, match=r"got none|rank \d of 2 failed"):
        load_full_state_dict(other, state)
    load_full_state_dict(other, state, from_rank_0=True)
    assert relative_error(other(example_input()), model(example_input())) == 0


def test_ranks_that_share_no_tensor_are_told_too(two, four):
    two.run(_without_shared_tensors)
    four.run(_with_tensors_of_pairs)


def _without_shared_tensors(rank, size) -> None:
    layer = ContextParallel().apply_to(MultiheadAttention(8, 4), world())
    state = {} if rank else dict(layer.state_dict(), more=torch.zeros(1))
    with pytest.raises(
        RuntimeError, match=r"got more, which it has not|rank 0 of 2 failed: .*more"
    ):
        load_full_state_dict(layer, state, from_rank_0=True)
    wanted = {name: torch.ones_like(x) for name, x in layer.state_dict().items()}
    load_full_state_dict(layer, {} if rank else wanted, from_rank_0=True)
    assert all((x == 1).all() for x in layer.parameters())


def _with_tensors_of_pairs(rank, size) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    layer = parallelize_module(MultiheadAttention(8, 4), mesh["tp"], HeadParallel())
    state = cut.full_state_dict(layer)
    wrong = dict(state, more=torch.zeros(1)) if rank == 0 else {}
    with pytest.raises(
        RuntimeError, match=r"got more, which it has not|rank 0 of \d failed: .*more"
    ):
        load_full_state_dict(layer, wrong, from_rank_0=True)
    load_full_state_dict(layer, state if rank == 0 else {}, from_rank_0=True)
    with pytest.raises(
        (ValueError, cut.ExchangeError), match="from_rank_0 must be the same on every rank of the"
    ):
        load_full_state_dict(layer, state if rank == 0 else {}, from_rank_0=rank != 3)


def test_wrappers_have_no_part_in_names(two):
    two.run(_wrapped)


def _wrapped(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    plain = nn.Sequential(MultiheadAttention(8, 4))
    model = parallelize_module(nn.Sequential(MultiheadAttention(8, 4)), mesh, HeadParallel())
    for wrapped in (
        torch.compile(model, backend="eager"), nn.Sequential(checkpoint_wrapper(model[0]))
    ):  # fmt: skip
        load_full_state_dict(wrapped, plain.state_dict())
        state = cut.full_state_dict(wrapped)
        if rank == 0:
            assert state.keys() == plain.state_dict().keys()
            assert all(torch.equal(x, plain.state_dict()[name]) for name, x in state.items())
    own = parallelize_module(MultiheadAttention(8, 4), mesh, HeadParallel())
    # Under packed names, too: to take such a tensor apart is an exchange.
    sharded = MultiheadAttention(8, 4)
    fully_shard(sharded, mesh=mesh)
    for other in (own, sharded):
        with pytest.raises((TypeError, cut.ExchangeError), match=r"got a DTensor for .*weight"):
            load_full_state_dict(own, other.state_dict() if rank == 0 else {}, from_rank_0=True)
    # A layer under two names has both.
    plain = nn.Sequential(*[MultiheadAttention(8, 4)] * 2)
    model = parallelize_module(nn.Sequential(*[MultiheadAttention(8, 4)] * 2), mesh, HeadParallel())
    load_full_state_dict(model, plain.state_dict())
    state = cut.full_state_dict(model)
    assert rank or state.keys() == plain.state_dict().keys()
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), MultiheadAttention(8, 4), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    parallelize_module(model[1], mesh, HeadParallel())
    plain = nn.Sequential(nn.Linear(8, 8), MultiheadAttention(8, 4), nn.Linear(8, 8))
    plain[2].weight = plain[0].weight
    load_full_state_dict(model, plain.state_dict())
    assert torch.equal(model[2].weight, plain[2].weight)
    assert not any(x.is_meta for x in model.parameters())
    model, plain = _with_one_table("meta"), _with_one_table("cpu")
    parallelize_module(model, mesh, HeadParallel())
    load_full_state_dict(model, plain.state_dict())
    assert model[1].position.bias is model[0].position.bias
    assert not any(x.is_meta for x in model.parameters())


def _with_one_table(device: str) -> nn.Sequential:
    """Two layers whose schemes share a table."""
    with torch.device(device):
        model = nn.Sequential(*(MultiheadAttention(8, 4, position=T5Bias(4)) for _ in range(2)))
    model[1].position.bias = model[0].position.bias
    return model
