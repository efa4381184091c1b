"""DTensors given to `relpos.attention` itself: right, or refused in words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from relpos import (
    BackendError,
    GridTerms,
    OffsetTable,
    ShapeError,
    Terms,
    attention,
    padding_ranges,
)
from tests.distributed.cut import relative_error

B, H, G, L, D = 4, 4, 4, 9, 6


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def terms_of(keys: Tensor, bias: Tensor, q_rel: Tensor | None = None) -> Terms:
    return Terms(keys=OffsetTable(keys, -2), bias=OffsetTable(bias, -3), q_rel=q_rel)


CUTS = {
    "batch": (Shard(0), Replicate()),
    "heads": (Replicate(), Shard(1)),
    "both": (Shard(0), Shard(1)),
    "heads twice": (Shard(1), Shard(1)),
    "not at all": (Replicate(), Replicate()),
}


@pytest.mark.parametrize("learned_apart", [False, True])
@pytest.mark.parametrize("groups", [G, 1])
@pytest.mark.parametrize("name", CUTS)
def test_what_is_cut_along_batch_and_heads_is_as_on_one_device(
    four, name: str, groups: int, learned_apart: bool
):
    four.run(_check, CUTS[name], groups, learned_apart)


def _check(rank, size, placements: tuple[Placement, ...], groups, learned_apart) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    q = drawn(B, H, L, D, seed=0)
    k, v = drawn(B, groups, L, D, seed=1), drawn(B, groups, L, D, seed=2)
    tables = [drawn(H, 5, D, seed=3), drawn(1, 7, seed=4)]
    mask, documents = drawn(B, H, L, L, seed=5) > -1, (torch.arange(L) // 4).expand(B, -1)
    leaves = [x.requires_grad_() for x in (q, k, v, *tables)]
    options = {"causal": True, "mask": mask, "documents": documents, "return_lse": True}
    expected, lse = attention(*leaves[:3], terms_of(*tables), **options)
    (expected.square().sum() + lse.sum()).backward()

    def of_keys(x: Tensor) -> tuple[Placement, ...]:
        heads = x.shape[1] > 1
        return tuple(p if heads or p != Shard(1) else Replicate() for p in placements)

    def cut(x: Tensor, where: tuple[Placement, ...]) -> Tensor:
        return distribute_tensor(x.detach(), mesh, where).requires_grad_()

    local = [cut(q, placements), cut(k, of_keys(k)), cut(v, of_keys(v))]
    own = [x.detach().requires_grad_() for x in tables]
    if learned_apart:
        own = [cut(tables[0], (Replicate(), Shard(0))), cut(tables[1], (Replicate(), Replicate()))]
    found, found_lse = attention(*local, terms_of(*own), **options)
    assert isinstance(found, DTensor)
    assert found.placements == placements
    (found.square().sum() + found_lse.sum()).full_tensor().backward()
    results = [(found, expected), (found_lse, lse)]
    results += [(x.grad, y.grad) for x, y in zip(local, leaves[:3], strict=True)]
    if learned_apart:
        results += [(x.grad, y.grad) for x, y in zip(own, tables, strict=True)]
    for one, other in results:
        assert isinstance(one, DTensor)
        assert other is not None
        assert relative_error(one.full_tensor(), other) <= 1e-12


def test_what_is_cut_otherwise_is_refused_in_words(four):
    four.run(_refused)


def _refused(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    x = drawn(4, 4, 8, 6, seed=0)

    def cut(placement: Placement, y: Tensor = x) -> Tensor:
        return distribute_tensor(y, mesh, [placement])

    tokens, heads, batch = cut(Shard(2)), cut(Shard(1)), cut(Shard(0))
    with pytest.raises(BackendError, match="q must be cut along batch or heads, got one cut along"):
        attention(tokens, tokens, tokens)
    with pytest.raises(BackendError, match=r"which relpos\.distributed\.attention takes"):
        attention(tokens, tokens, tokens)
    with pytest.raises(BackendError, match="k must be cut as q is"):
        attention(heads, batch, batch)
    with pytest.raises(BackendError, match="q must be cut along batch or heads or not at all"):
        attention(cut(Shard(3)), heads, heads)
    partial = DTensor.from_local(x, mesh, [Partial()])
    with pytest.raises(BackendError, match="q must be cut along batch or heads or not at all"):
        attention(partial, partial, partial)
    with pytest.raises(TypeError, match="k must be a DTensor, as others of the tensors are"):
        attention(heads, x, x)
    few = cut(Shard(1), drawn(4, 6, 8, 6, seed=0))
    with pytest.raises(BackendError, match="q must have a multiple of 4 heads, as many as are cut"):
        attention(few, few, few)
    both = init_device_mesh("cpu", (2, 2))
    for dim, what in ((0, "sequences"), (1, "heads")):
        for count in (2, 6):
            shape = [4, 4, 8, 6]
            shape[dim] = count
            y = distribute_tensor(drawn(*shape, seed=0), both, [Shard(dim), Shard(dim)])
            with pytest.raises(BackendError, match=f"q must have a multiple of 4 {what}, as many"):
                attention(y, y, y)
    grid = GridTerms((2, 4), (Terms(), Terms(bias=OffsetTable(torch.ones(4, 3).double(), -1))))
    found = attention(heads, heads, heads, grid)
    assert relative_error(found.full_tensor(), attention(x, x, x, grid)) <= 1e-12
    of_each = padding_ranges(torch.tensor([1, 2, 3, 4]), 4)
    for ranges in ([None, of_each], [padding_ranges(torch.tensor([1]), 2), of_each]):
        found = attention(batch, batch, batch, grid, key_ranges=ranges)
        expected = attention(x, x, x, grid, key_ranges=ranges)
        assert relative_error(found.full_tensor(), expected) <= 1e-12
    with pytest.raises(ShapeError, match=r"key_ranges\[1\] must have all 4 sequences"):
        attention(batch, batch, batch, grid, key_ranges=[None, of_each[:2]])
    with pytest.raises(TypeError, match=r"key_ranges\[0\] must be a tensor, got int"):
        attention(batch, batch, batch, grid, key_ranges=[1, None])


@pytest.mark.parametrize("name", CUTS)
def test_dropout_is_the_same_however_they_are_cut(four, name: str):
    four.run(_check_dropout, CUTS[name])


def _check_dropout(rank, size, placements: tuple[Placement, ...]) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    leaves = [drawn(B, H, L, D, seed=seed).float().requires_grad_() for seed in range(3)]
    torch.manual_seed(5)
    expected = attention(*leaves, dropout=0.5, backend="native")
    expected.square().sum().backward()
    local = [distribute_tensor(x.detach(), mesh, placements).requires_grad_() for x in leaves]
    for backend in ("native", "tiled", "auto"):
        torch.manual_seed(5 + rank)  # that of the first rank counts
        found = attention(*local, dropout=0.5, backend=backend)
        gradients = torch.autograd.grad(found.square().sum().full_tensor(), local)
        assert relative_error(found.full_tensor(), expected) <= 1e-6
        for one, other in zip(gradients, leaves, strict=True):
            assert isinstance(one, DTensor)
            assert other.grad is not None
            assert relative_error(one.full_tensor(), other.grad) <= 1e-6


def test_tensors_beside_dtensors_are_checked(four):
    four.run(_beside)


def _beside(rank, size) -> None:
    mesh = init_device_mesh("cpu", (size,))
    x = drawn(4, 4, 8, 6, seed=0)
    heads, whole = distribute_tensor(x, mesh, [Shard(1)]), distribute_tensor(x, mesh, [Replicate()])
    batch = distribute_tensor(x, mesh, [Shard(0)])
    few = Terms(bias=OffsetTable(torch.ones(2, 3).double(), -1))
    with pytest.raises(ShapeError, match=r"terms.bias.rows must have all 4 heads of the DTensor q"):
        attention(heads, heads, heads, few)
    with pytest.raises(ShapeError, match="mask must have all 4 heads of the DTensor q, or one for"):
        attention(heads, heads, heads, mask=torch.ones(1, 2, 8, 8).bool())
    with pytest.raises(ShapeError, match="documents must have all 4 sequences of the DTensor q"):
        attention(batch, batch, batch, documents=torch.zeros(2, 8, dtype=torch.int64))
    with pytest.raises(TypeError, match="q must be a DTensor, as others of the tensors are"):
        attention(x, x, x, mask=whole > 0)
    with pytest.raises(TypeError, match="q must be a DTensor, as others of the tensors are"):
        attention(x, x, x, Terms(bias=OffsetTable(whole[0, :, 0], -1)))
    for name in ("documents", "query_documents", "key_ranges"):
        with pytest.raises(TypeError, match="q must be a DTensor, as others of the tensors are"):
            attention(x, x, x, **{name: whole})
    with pytest.raises(TypeError, match="terms must be Terms or GridTerms, got NoneType"):
        attention(heads, heads, heads, None)
    with pytest.raises(TypeError, match="mask must be a tensor, got list"):
        attention(heads, heads, heads, mask=[1])
    with pytest.raises(ValueError, match="dropout must be in 0 <= dropout < 1, got 2"):
        attention(heads, heads, heads, dropout=2)
