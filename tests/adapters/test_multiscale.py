"""MViTv2's attention between grids of any two sizes, one image or video after another."""

from __future__ import annotations

from copy import deepcopy
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relpos.adapters import adapt
from tests.apart import import_apart

from .largest_tensor import LargestTensor
from .models.case import draw

pytestmark = pytest.mark.no_typecheck


def timm(side: int, stride_q: int, stride_kv: int) -> nn.Module:
    """With a class token."""
    return import_apart("timm.models.mvitv2").MultiScaleAttention(
        8, 12, (side, side), 2, kernel_q=(3, 3), kernel_kv=(3, 3), stride_q=(stride_q,) * 2,
        stride_kv=(stride_kv,) * 2,
    )  # fmt: skip


def torchvision(side: int, stride_q: int, stride_kv: int) -> nn.Module:
    return import_apart("torchvision.models.video.mvit").MultiscaleAttention(
        [2, side, side], 8, 12, 2, [3, 3, 3], [3, 3, 3], [1, stride_q, stride_q],
        [1, stride_kv, stride_kv], residual_pool=True, residual_with_cls_embed=False,
        rel_pos_embed=True,
    )  # fmt: skip


def mmpretrain(side: int, stride_q: int, stride_kv: int) -> nn.Module:
    return import_apart("mmpretrain.models.backbones.mvit").MultiScaleAttention(
        8, 12, 2, stride_q=stride_q, stride_kv=stride_kv, rel_pos_spatial=True,
        input_size=(side, side),
    )  # fmt: skip


def mmaction(side: int, stride_q: int, stride_kv: int) -> nn.Module:
    return import_apart("mmaction.models.backbones.mvit").MultiScaleAttention(
        8, 12, 2, stride_q=(1, stride_q, stride_q), stride_kv=(1, stride_kv, stride_kv),
        input_size=(2, side, side),
    )  # fmt: skip


# Of each how it is made, whether it has a class token, and the axes before those of an image.
LIBRARIES: dict[str, tuple[Any, int, tuple[int, ...]]] = {
    "timm": (timm, 1, ()),
    "torchvision": (torchvision, 1, (2,)),
    "mmpretrain": (mmpretrain, 0, ()),
    "mmaction": (mmaction, 1, (2,)),
}
libraries = pytest.mark.parametrize("library", LIBRARIES)


@cache
def pair(library: str, *sizes: int) -> tuple[nn.Module, nn.Module]:
    """The original and an adapted copy."""
    torch.manual_seed(0)
    original = LIBRARIES[library][0](*sizes).double().eval()
    draw(original)
    adapted = deepcopy(original)
    assert adapt(adapted, strict=True).adapted
    return original, adapted


def called(module: nn.Module, x: Tensor, shape: tuple[int, ...]) -> list[Any]:
    """Output, new grid, and gradients."""
    leaf = x.clone().requires_grad_()
    output, grid = module(leaf, shape)
    gradients = torch.autograd.grad(output.square().sum(), [leaf, *module.parameters()])
    return [output, torch.tensor(grid), *gradients]


@pytest.mark.parametrize("strides", [(1, 1), (1, 2), (1, 4), (2, 1), (2, 3), (3, 2), (4, 1)])
@libraries
def test_grids_of_any_sizes_equal_the_original(library: str, strides: tuple[int, int]):
    original, adapted = pair(library, 14, *strides)
    _, prefix, before = LIBRARIES[library]
    for image in [(14, 14), (12, 6), (13, 7), (11, 14), (5, 9), (1, 3), (1, 1)]:
        shape = before + image
        x = torch.randn(2, prefix + torch.Size(shape).numel(), 8, dtype=torch.float64)
        for ours, theirs in zip(called(adapted, x, shape), called(original, x, shape), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@libraries
def test_places_that_are_rounded_cost_no_entry_for_each_pair(library: str):
    _, adapted = pair(library, 45, 1, 2)
    _, prefix, before = LIBRARIES[library]
    shape = (*before, 45, 37)
    tokens = torch.Size(shape).numel()
    with LargestTensor() as largest:
        called(adapted, torch.randn(1, prefix + tokens, 8, dtype=torch.float64), shape)
    assert largest.entries < tokens * tokens // 16, largest.by


@pytest.mark.parametrize(
    ("side", "stride", "fits"), [(14, 2, 14), (14, 4, 15), (16, 4, 17), (12, 3, 13)]
)
def test_timm_s_larger_image_fails_where_the_original_does(side: int, stride: int, fits: int):
    original, adapted = pair("timm", side, 1, stride)
    x = torch.randn(1, 1 + fits * fits, 8, dtype=torch.float64)
    torch.testing.assert_close(adapted(x, (fits, fits))[0], original(x, (fits, fits))[0])
    x = torch.randn(1, 1 + (fits + 1) * fits, 8, dtype=torch.float64)
    for module in (original, adapted):
        with pytest.raises(IndexError):
            module(x, (fits + 1, fits))


@libraries
@pytest.mark.costly(1)
def test_a_program_serves_maps_whose_sizes_divide_and_others(library: str):
    # A module of torch's own, since the originals fail to be exported for any size.
    _, adapted = pair(library, 14, 1, 2)
    _, prefix, before = LIBRARIES[library]

    class Map(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = adapted

        def forward(self, x: Tensor) -> Tensor:
            shape = tuple(x.shape[2:])
            tokens = torch.cat([x.flatten(2)[..., :prefix], x.flatten(2)], -1).mT
            return self.attention(tokens, shape)[0]

    sizes = dict.fromkeys(range(2 + len(before), 4 + len(before)), torch.export.Dim.DYNAMIC)
    example = torch.randn(2, 8, *before, 12, 8, dtype=torch.float64)
    program = torch.export.export(Map(), (example,), dynamic_shapes=(sizes,)).module()
    for image in [(12, 8), (13, 7), (6, 10)]:
        x = torch.randn(2, 8, *before, *image, dtype=torch.float64)
        torch.testing.assert_close(program(x), Map()(x), rtol=1e-10, atol=1e-10)


def timm_rows(queries: int, keys: int) -> Tensor:
    rows = torch.arange(2.0 * max(queries, keys) - 1)[:, None]
    return import_apart("timm.models.mvitv2").cal_rel_pos_type(
        torch.zeros(1, 1, queries, keys), torch.ones(1, 1, queries, 1), False, (queries, 1),
        (keys, 1), rows, torch.zeros(1, 1),
    )[0, 0]  # fmt: skip


def torchvision_rows(queries: int, keys: int) -> Tensor:
    rows, none = torch.arange(2.0 * max(queries, keys) - 1)[:, None], torch.zeros(1, 1)
    return import_apart("torchvision.models.video.mvit")._add_rel_pos(
        torch.zeros(1, 1, queries + 1, keys + 1), torch.ones(1, 1, queries + 1, 1),
        (1, queries, 1), (1, keys, 1), rows, none, none,
    )[0, 0, 1:, 1:]  # fmt: skip


def mm_rows(library: str, queries: int, keys: int) -> Tensor:
    rows = torch.arange(2.0 * max(queries, keys) - 1)[:, None]
    module = import_apart(f"{library}.models.backbones.mvit")
    return module.resize_decomposed_rel_pos(rows, queries, keys)[..., 0]


# By library, the row that its own function finds for each place of a query and of a key.
ROWS = {
    "timm": timm_rows,
    "torchvision": torchvision_rows,
    "mmpretrain": partial(mm_rows, "mmpretrain"),
    "mmaction": partial(mm_rows, "mmaction"),
}


@libraries
def test_places_are_rounded_to_the_rows_of_the_original(library: str):
    """float32 decides about whole numbers: no row may be the next one."""
    _, adapted = pair(library, 14, 1, 1)
    for queries in range(2, 60):
        for keys in range(2, 60, 7):
            if max(queries, keys) % min(queries, keys):
                ours = adapted.row_of_pair(queries, keys, torch.device("cpu")).long()
                assert torch.equal(ours, ROWS[library](queries, keys).long()), (queries, keys)
