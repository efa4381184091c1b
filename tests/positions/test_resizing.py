"""Tables resized as torch's interpolation resizes images."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate
from torch.testing import assert_close

import relpos
from relpos.positions import resize_rows
from tests.factories import normal

SIZE = st.integers(1, 15)


@given(old=SIZE, new=SIZE)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_vectors_are_interpolated_as_checkpoints_are(old, new):
    rows = normal(2, old, 3)
    want = interpolate(rows.mT, size=new, mode="linear", align_corners=False).mT
    assert_close(resize_rows(rows, (new,)), want)


@given(old=st.tuples(SIZE, SIZE), new=st.tuples(SIZE, SIZE), linear=st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_planes_are_interpolated_as_images_are(old, new, linear):
    joint_bias = normal(2, *old)
    want = interpolate(joint_bias[None], size=new, mode="bilinear" if linear else "bicubic")[0]
    assert_close(resize_rows(joint_bias, new, mode="linear" if linear else "cubic"), want)


def test_volumes_are_interpolated_along_every_axis():
    joint_bias = normal(2, 3, 5, 7)
    want = interpolate(joint_bias[None], size=(5, 3, 9), mode="trilinear")[0]
    assert_close(resize_rows(joint_bias, (5, 3, 9)), want)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_the_same_size_gives_the_rows_themselves(mode):
    joint_bias = normal(2, 5, 7)
    assert resize_rows(joint_bias, (5, 7), mode=mode) is joint_bias


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("new", [1, 3, 9, 27])
def test_offset_zero_stays_in_the_middle_and_symmetry_holds(mode, new):
    rows = normal(1, 9)
    mirrored = resize_rows(rows.flip(1), (new,), mode=mode)
    assert_close(mirrored, resize_rows(rows, (new,), mode=mode).flip(1))
    assert_close(resize_rows(rows, (new,), mode=mode)[:, new // 2], rows[:, 4])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_gradients_are_exact(mode):
    rows = normal(2, 5, 3).requires_grad_()
    counts = (7,) if mode == "linear" else (7, 9)
    assert torch.autograd.gradcheck(lambda x: resize_rows(x, counts, mode=mode), (rows,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_rounded_once(dtype):
    rows = normal(2, 9, 3).to(dtype)
    got = resize_rows(rows, (13,))
    assert got.dtype == dtype
    want = resize_rows(rows.double(), (13,))
    # The last rounding, and float32's in between.
    budget = torch.finfo(dtype).eps / 2 + 4 * torch.finfo(torch.float32).eps
    assert ((got.double() - want).abs() <= budget * rows.abs().max().double()).all()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype, mode):
    rows = normal(2, 9, 4, 3).to(dtype)
    want = resize_rows(rows.float(), (13, 7), mode=mode).to(dtype)
    assert torch.equal(resize_rows(rows, (13, 7), mode=mode), want)


def test_autocast_takes_no_digits():
    rows = normal(2, 9, 3, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = resize_rows(rows, (13,))
    assert got.dtype == torch.float32
    assert torch.equal(got, resize_rows(rows, (13,)))
    want = interpolate(rows.double().mT, size=13, mode="linear").mT
    # The weights are rounded, their products, and the sum.
    budget = 3 * torch.finfo(torch.float32).eps * rows.abs().max()
    assert (got.double() - want).abs().max() <= budget


@pytest.mark.no_typecheck
def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="resize_rows: mode must be 'linear' or 'cubic', got 'x'"):
        resize_rows(torch.zeros(1, 3), (5,), mode="x")
    with pytest.raises(ValueError, match="resize_rows: counts must be an integer >= 1, got 0"):
        resize_rows(torch.zeros(1, 3), (0,))
    with pytest.raises(
        relpos.ShapeError, match="resize_rows: rows must have an axis for the heads"
    ):
        resize_rows(torch.zeros(1, 3), (5, 5))
    with pytest.raises(
        relpos.ShapeError, match=r"resize_rows: rows must be floating point .* got torch.int64"
    ):
        resize_rows(torch.arange(6).view(2, 3), (5,))


def test_rows_that_there_are_not_cannot_be_resized():
    with pytest.raises(relpos.ShapeError, match=r"rows must be at least one, got \(2, 0, 4\)"):
        resize_rows(torch.zeros(2, 0, 4), (3,))
