"""Layers whose heads are cut: a rank that is called otherwise, or fails, tells the others."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

import relpos.distributed as cut
from relpos.distributed import ContextParallel, HeadParallel
from relpos.layers import MultiheadAttention
from relpos.positions import Huang
from tests.distributed.cut import relative_error

X = torch.zeros(2, 5, 8)
CALLS: dict[str, tuple[list[dict], str]] = {
    "lengths": (
        [{}, {"key": X[:, :3], "value": X[:, :3]}],
        "tensors given twice must be the same on every rank",
    ),
    "batches": ([{"x": X[:1]}, {}], r"query must be the same on every rank .*\[1, 5, 8\]"),
    "dtypes": ([{"x": X.double()}, {}], "query must be the same on every rank"),
    "weights": ([{"need_weights": True}, {}], "need_weights must be the same .*got True on rank 0"),
    "causal": ([{}, {"is_causal": True}], "is_causal must be the same .*got False on rank 0"),
    "masks": ([{}, {"attn_mask": torch.zeros(5, 5)}], "attn_mask must be the same on every rank"),
    "learned input": (
        [{"x": X.clone().requires_grad_()}, {}],
        "query must be the same .*requires_",
    ),
    "one tensor or two": (
        [{"key": X.clone()}, {}],
        "tensors given twice must be the same on every",
    ),
    "frozen tables": ([{"frozen": True}, {}], "parameters that learn must be the same on every"),
    "training": (
        [{"training": True}, {}],
        "dropout must be the same on every rank .*0.5 on rank 0",
    ),
    "autocast": (
        [{"autocast": True}, {}],
        "autocast must be the same .*got torch.bfloat16 on rank",
    ),
    "a window": ([{"window": (2, 0)}, {}], "the layer must be the same on every rank"),
    "a scale": ([{}, {"scale": 3.0}], "the layer must be the same on every rank"),
    "a scale at its last digits": (
        [{"scale": 0.1234567}, {"scale": 0.1234568}],
        "the layer must be .*'scale': 0.1234567,.*'scale': 0.1234568,",
    ),
    "masks of another batch": (
        [{"attn_mask": torch.zeros(4, 5, 5)}] * 2,
        r"with b=2 and all h=4, got \(4, 5, 5\)",
    ),
    "a word": (
        [{}, {"spam": 1}],
        "(unexpected keyword argument 'spam'|rank 1 of 2 failed: TypeEr)",
    ),
    "given twice": ([{"twice": True}] * 2, "multiple values for argument 'need_weights'"),
    "too many": ([{"many": True}, {}], "(multiple values|rank 0 of 2 failed: TypeError)"),
    "no tensor": ([{}, {"x": "no"}], "(query must be a tensor, got str|must be the same)"),
    "wrong width on all": ([{"x": X[..., :4]}] * 2, "query must be"),
    "a wrong mask on one": (
        [{"attn_mask": torch.zeros(5, 5)}, {"attn_mask": torch.zeros(5, 5).int()}],
        "attn_mask must be the same on every rank",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_ranks_that_are_called_otherwise_all_say_so(two, name: str):
    for said in two.run(_called_otherwise, name):
        assert re.search(CALLS[name][1], said), said


def _called_otherwise(rank, size, name) -> str:
    given = dict(CALLS[name][0][rank])
    torch.manual_seed(0)
    layer = MultiheadAttention(8, 4, dropout=0.5, position=Huang(2, max_length=4))
    layer.window, layer.scale = given.pop("window", None), given.pop("scale", None)
    layer = parallelize_module(layer, init_device_mesh("cpu", (size,)), HeadParallel())
    layer.train(given.pop("training", False))
    if given.pop("frozen", False):
        layer.position.requires_grad_(False)
    x = given.pop("x", X)
    tensors = {name: given.pop(name, x) for name in ("query", "key", "value")}
    args = tuple(tensors.values())
    if given.pop("twice", False):
        args = (*args, None, False)
    if given.pop("many", False):
        args = (*args, None, False, None, True, False, 1, 2)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=given.pop("autocast", False))
    try:
        with autocast:
            layer(*args, **{"need_weights": False} | given)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    else:
        words = "nothing"
    # Nobody was left behind.
    layer.requires_grad_(True)
    layer.window = layer.scale = None
    layer.eval()(X, X, X, need_weights=False)
    return words


def test_a_rank_that_fails_tells_those_of_its_heads_and_tokens(four):
    said = four.run(_fails_in_both)
    assert said[0] == "MemoryError: no room"
    assert all("failed: " in other and "MemoryError: no room" in other for other in said[1:]), said


def _fails_in_both(rank, size) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    layer = parallelize_module(MultiheadAttention(8, 4), mesh["tp"], HeadParallel())
    parallelize_module(layer, mesh["cp"], ContextParallel(method="ring"))
    x = torch.zeros(1, 4, 8)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr("relpos.distributed.methods.ring.add_parts", _no_room)
        try:
            layer(x, x, x, need_weights=False)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def _no_room(*_: object) -> None:
    raise MemoryError("no room")


def test_a_rank_that_is_called_otherwise_tells_those_of_other_tokens(four):
    for said in four.run(_called_otherwise_in_both):
        assert "is_causal must be the same" in said, said


def _called_otherwise_in_both(rank, size) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    layer = parallelize_module(MultiheadAttention(8, 4), mesh["tp"], HeadParallel())
    parallelize_module(layer, mesh["cp"], ContextParallel(method="ring"))
    x = torch.zeros(1, 4, 8)
    try:
        layer(x, x, x, need_weights=False, is_causal=rank == 0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_wrong_masks_of_some_tokens_are_told_to_those_of_others(four):
    for said in four.run(_wrong_mask_of_some_tokens):
        assert "attn_mask must be (i, j) or (b * h, i, j) with b=1 and all h=4, got (3," in said, (
            said
        )


def _wrong_mask_of_some_tokens(rank, size) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    layer = parallelize_module(MultiheadAttention(8, 4), mesh["tp"], HeadParallel())
    parallelize_module(layer, mesh["cp"], ContextParallel())
    x = torch.zeros(1, 4, 8)
    try:
        layer(x, x, x, need_weights=False, attn_mask=torch.zeros(3 if rank < 2 else 4, 4, 8))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_modules_that_differ_between_ranks_are_refused(two):
    two.run(_other_modules)


def _other_modules(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    layer = MultiheadAttention(8 * (1 + rank), 4)
    with pytest.raises(ValueError, match=r"HeadParallel: module.0 must be the same on every rank"):
        parallelize_module(nn.Sequential(layer), mesh, HeadParallel())
    said = "num_heads must be a multiple of the 2 ranks, got 3"
    with pytest.raises((ValueError, cut.ExchangeError), match=said):
        parallelize_module(MultiheadAttention(6, 3 if rank else 2), mesh, HeadParallel())
    with pytest.raises(
        TypeError, match="HeadParallel: device_mesh must be a DeviceMesh, got Proce"
    ):
        HeadParallel()._apply(MultiheadAttention(8, 4), mesh.get_group())  # type: ignore[arg-type]
    layer = MultiheadAttention(8, 4)
    layer.out_proj = nn.utils.parametrizations.weight_norm(layer.out_proj)
    with pytest.raises(
        ValueError, match=r"module\.out_proj must be a torch.nn.Linear, of which each"
    ):
        parallelize_module(layer, mesh, HeadParallel())
    model = fully_shard(nn.Sequential(MultiheadAttention(8, 4)), mesh=mesh)
    before = list(model.state_dict())
    with pytest.raises(ValueError, match=r"module\.0\.in_proj_weight must be a whole tensor"):
        parallelize_module(model, mesh, HeadParallel())
    assert list(model.state_dict()) == before
    layer = parallelize_module(MultiheadAttention(8, 4), mesh, HeadParallel())
    with pytest.raises(TypeError, match="HeadParallel: check must be True or False, got 1"):
        HeadParallel(check=1)  # type: ignore[arg-type]


@contextmanager
def count_collectives() -> Iterator[list[None]]:
    """One entry for each all-reduce of this rank."""
    calls: list[None] = []
    reduce = distributed.all_reduce

    def counted(*args: object, **options: object) -> object:
        calls.append(None)
        return reduce(*args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "all_reduce", counted)
        yield calls


def test_without_checks_the_result_is_the_same(two):
    two.run(_unchecked)


def _unchecked(rank, size) -> None:
    torch.manual_seed(0)
    whole = MultiheadAttention(8, 4, position=Huang(2, max_length=4)).double()
    mesh = init_device_mesh("cpu", (size,))
    layer = parallelize_module(copy.deepcopy(whole), mesh, HeadParallel(check=False))
    x = torch.randn(2, 5, 8).double()
    with count_collectives() as calls:
        found = layer(x, x, x, need_weights=False)[0]
    assert len(calls) == 1
    assert relative_error(found, whole(x, x, x, need_weights=False)[0]) <= 1e-12
    with pytest.raises(TypeError, match="unexpected keyword argument 'spam'"):
        layer(x, x, x, spam=1)
