"""What a group cannot do is said in words, on every rank at once, and before anything is sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import relpos.distributed as cut
from relpos import BackendError, GridTerms, OffsetTable, Terms, attention_weights, relative_logits
from relpos.layers import MultiheadAttention
from relpos.positions import LearnedAbsolute
from tests.distributed.cut import world

B, H, N, D = 1, 2, 4, 4  # N tokens on each of two ranks


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def table(*shape: int) -> OffsetTable:
    return OffsetTable(zeros(*shape), -1)


def grid(*axes: Terms, joint_bias: Tensor | None = None) -> GridTerms:
    return GridTerms((2, 4), axes or (Terms(), Terms()), joint_bias)


def attend(rank: int, **changes: Any) -> Tensor:
    x = zeros(B, H, N, D)
    given: dict[str, Any] = {"q": x, "k": x, "v": x, "group": world()} | changes
    return cut.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


WRONG: dict[str, Callable[[int], Any]] = {
    "heads of a table": lambda rank: attend(rank, terms=grid(Terms(bias=table(3, 3)), Terms())),
    "heads of a joint bias": lambda rank: attend(rank, terms=grid(joint_bias=zeros(3, 3, 7))),
    "heads of q_rel": lambda rank: attend(
        rank, terms=grid(Terms(keys=table(1, 3, D), q_rel=zeros(B, 1, N, D)), Terms())
    ),
    "q_rel of all tokens": lambda rank: attend(
        rank, terms=grid(Terms(keys=table(1, 3, D), q_rel=zeros(B, H, 2 * N, D)), Terms())
    ),
    "heads of one rank's table": lambda rank: attend(
        rank, terms=grid(Terms(bias=table(2 + rank, 3)), Terms())
    ),
    "width of one rank's table": lambda rank: attend(
        rank, terms=grid(Terms(keys=table(1, 3, D + rank)), Terms())
    ),
    "whole keys of other lengths": lambda rank: attend(
        rank, k=zeros(B, H, N + rank, D), v=zeros(B, H, N + rank, D), key_layout="whole"
    ),
    "a layout of keys": lambda rank: attend(rank, key_layout="all"),
    "a device that the group does not have": lambda rank: attend(
        rank, **dict.fromkeys("qkv", torch.empty(B, H, N, D, device="meta"))
    ),
    "kind of return_lse": lambda rank: attend(rank, return_lse=1),
    "rows of one rank's mask": lambda rank: attend(
        rank, mask=torch.ones(1, 1, N if rank else 1, 2 * N).bool()
    ),
    "columns of one rank's mask": lambda rank: attend(
        rank, mask=torch.ones(1, 1, 1, N if rank else 2 * N).bool()
    ),
    "unshard: dtype": lambda rank: cut.unshard(zeros(1, 4).to(DTYPES[rank]), world()),
    "unshard: another axis": lambda rank: cut.unshard(zeros(1 + rank, 4), world()),
    "unshard: dim": lambda rank: cut.unshard(zeros(4, 4), world(), dim=rank),
    "unshard: one rank's dim": lambda rank: cut.unshard(zeros(4, 4), world(), dim=9 * rank),
    "unshard: layout": lambda rank: cut.unshard(zeros(1, 4), world(), LAYOUTS[rank]),
    "unshard: one rank's layout": lambda rank: cut.unshard(zeros(1, 4), world(), WORDS[rank]),
    "unshard: requires_grad": lambda rank: cut.unshard(
        zeros(1, 4).requires_grad_(rank == 1), world()
    ),
    "unshard: a list": lambda rank: cut.unshard([1] if rank else zeros(1, 4), world()),  # type: ignore[arg-type]
}
DTYPES = (torch.float32, torch.float64)
LAYOUTS: tuple[cut.Layout, ...] = ("zigzag", "contiguous")
WORDS: Any = ("zigzag", "spiral")


def words(rank: int, size: int, name: str) -> str:
    """What a rank says."""
    try:
        WRONG[name](rank)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("name", WRONG)
def test_every_rank_says_what_is_wrong(two, name: str):
    began = time.monotonic()
    for said in two.run(words, name):
        function = "unshard" if name.startswith("unshard") else "attention"
        assert said.startswith(
            tuple(f"{kind}: {function}: " for kind in
                  ("ShapeError", "ValueError", "TypeError", "ExchangeError"))
        ), said  # fmt: skip
        assert "must " in said
        assert "could not exchange" not in said
    assert time.monotonic() - began < 20


def test_words_of_single_arguments(two):
    two.run(_wrong)


def _wrong(rank, size) -> None:
    x = zeros(B, H, N, D)
    whole = distribute_tensor(x, init_device_mesh("cpu", (size,)), [Replicate()])
    for name in ("mask", "documents", "query_documents", "key_ranges"):
        with pytest.raises(TypeError, match=f"attention: {name} must be of plain tensors, which"):
            attend(rank, **{name: whole})
    with pytest.raises(TypeError, match="attention: terms must be of plain tensors, which"):
        attend(rank, terms=Terms(bias=OffsetTable(whole[0, :, 0], -1)))
    for function in (relative_logits, attention_weights):
        for q, terms, name in (
            (whole, Terms(), "q"), (x, Terms(bias=OffsetTable(whole[0, :, 0], -1)), "terms")
        ):  # fmt: skip
            said = f"{function.__name__}: {name} must be of plain tensors, such as full_tensor"
            with pytest.raises(TypeError, match=said):
                function(q, x, terms)
    with pytest.raises(TypeError, match=r"ContextParallel: module must be an nn\.Module, got int"):
        cut.ContextParallel().remove_from(3)  # type: ignore[arg-type]
    # A window of which both sides are open is none.
    attend(rank, window=None if rank else (None, None))
    y = zeros(B, H, N, D + rank)
    with pytest.raises(ValueError, match="q must be the same on every rank of the group, got"):
        attend(rank, q=y, k=y, v=y)
    with pytest.raises(TypeError, match="attention: check must be True or False, got 'no'"):
        attend(rank, check="no")
    with pytest.raises(TypeError, match="ContextParallel: check must be True or False, got 0"):
        cut.ContextParallel(check=0)  # type: ignore[arg-type]
    for function in (cut.shard, cut.unshard):
        with pytest.raises(TypeError, match="x must be a plain tensor, such as to_local"):
            function(whole, world())
    with pytest.raises(TypeError, match=r"ContextParallel: module must be an nn.Module, got int"):
        cut.ContextParallel().apply_to(3, world())  # type: ignore[arg-type]
    mixed = nn.Sequential(MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2))
    with pytest.raises(ValueError, match=r"must have no torch.nn.MultiheadAttention, whose se"):
        cut.ContextParallel().apply_to(mixed, world())
    assert mixed[0].attend_elsewhere is None
    with pytest.raises(TypeError, match="table_placement: mesh must be a DeviceMesh, got NoneType"):
        cut.table_placement(None)  # type: ignore[arg-type]
    for function in (cut.full_state_dict, lambda x: cut.load_full_state_dict(x, {})):
        with pytest.raises(
            TypeError, match=r"full_state_dict: model must be an nn.Module, got int"
        ):
            function(3)  # type: ignore[arg-type]
    attend(rank, window=([1, 1], (1, 1))[rank])
    with pytest.raises(BackendError, match="key_layout 'whole' does not support GridTerms"):
        attend(rank, terms=grid(), key_layout="whole")


def test_without_its_process_group_a_layer_says_so(two):
    two.run(_left_alone)


def _left_alone(rank, size) -> None:
    layer = cut.ContextParallel().apply_to(MultiheadAttention(8, 2), world())
    x = zeros(1, 4, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "is_initialized", lambda: False)
        with pytest.raises(RuntimeError, match="MultiheadAttention: there must be a process group"):
            layer(x, x, x, need_weights=False)


def test_a_start_before_the_table_is_refused_on_every_rank(two):
    two.run(_before_the_table)


def _before_the_table(rank, size) -> None:
    position = LearnedAbsolute(4, 9)
    cut.ContextParallel().apply_to(position, world())
    with pytest.raises(ValueError, match="LearnedAbsolute: start must be an integer >= 0, got -3"):
        position(zeros(1, 4, 4), -3)


def test_a_process_outside_the_group_is_told_so(two):
    two.run(_outside)


def _outside(rank, size) -> None:
    group: Any = distributed.new_group([0])
    mesh = DeviceMesh("cpu", [0])
    for one, kind in ((group, "group"), (mesh, "mesh")):
        if rank == 0:
            assert cut.spans(4, one) == [(0, 4)]
            continue
        with pytest.raises(ValueError, match=f"among its ranks, got a {kind} without rank 1"):
            cut.spans(4, one)


@pytest.mark.parametrize(
    "dtype", ["int16", "uint16", "uint64", "float8_e4m3fn", "complex64", "bool", "bfloat16"]
)
def test_shards_of_any_dtype_are_put_together(two, dtype: str):
    two.run(_of_dtype, dtype)


def _of_dtype(rank, size, dtype) -> None:
    x = (torch.arange(14.0).view(2, 7) % 5).to(getattr(torch, dtype))
    found = cut.unshard(cut.shard(x, world()), world())
    assert found.dtype == x.dtype
    assert torch.equal(found.view(torch.uint8), x.view(torch.uint8))
    if dtype == "complex64":
        assert torch.equal(cut.unshard(cut.shard(x, world()).conj(), world()), x.conj())


def test_an_empty_batch_has_no_documents(two):
    two.run(_empty_batch)


def test_ranges_of_axes_are_refused(two):
    two.run(_ranges_of_axes)


def _ranges_of_axes(rank, size) -> None:
    x, grid = torch.zeros(1, H, 4, D), GridTerms((2 * size, 2))
    for ranges in ([None, None], [torch.zeros(1, 2 * size, 2).long(), None]):
        with pytest.raises(TypeError, match="key_ranges must be one tensor over several devices"):
            cut.attention(x, x, x, grid, key_ranges=ranges, method="heads", group=world())


def _empty_batch(rank, size) -> None:
    x = torch.zeros(0, H, N, D).requires_grad_()
    documents = torch.zeros(0, N, dtype=torch.int32)
    ranges = torch.zeros(0, N, 2, dtype=torch.int64)
    for options in (
        {"documents": documents},
        {"documents": documents, "query_documents": documents},
        {"key_ranges": ranges},
    ):
        for method in ("heads", "gather", "ring"):
            for backend in ("auto", "tiled"):
                found = attend(rank, q=x, k=x, v=x, method=method, backend=backend, **options)
                assert found.shape == x.shape
                found.sum().backward()
