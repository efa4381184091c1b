"""`Sinusoidal` and `LearnedAbsolute`, which are added to the input."""

import copy
import math
import pickle

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import LearnedAbsolute, Sinusoidal
from tests.factories import normal


@pytest.mark.parametrize("dim", [1, 2, 5, 8])
def test_sinusoids_equal_the_formula_at_every_entry(dim):
    x = normal(2, 33, dim)
    got = Sinusoidal(dim)(x, start=7) - x
    for p in range(33):
        for c in range(dim):
            angle = (7 + p) / 10000 ** (2 * (c // 2) / dim)
            want = math.cos(angle) if c % 2 else math.sin(angle)
            assert abs(got[1, p, c].item() - want) < 1e-12


def test_a_later_start_equals_the_end_of_one_pass():
    x = normal(2, 40, 6)
    for position in (Sinusoidal(6), LearnedAbsolute(6, 9, dtype=torch.float64)):
        parts = [position(x[:, :3]), position(x[:, 3:20], start=3), position(x[:, 20:], start=20)]
        assert_close(torch.cat(parts, 1), position(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sinusoids_keep_the_inputs_dtype_and_are_as_exact_as_it(dtype):
    got = Sinusoidal(6)(torch.zeros(1, 2000, 6, dtype=dtype))
    assert got.dtype == dtype
    want = Sinusoidal(6)(torch.zeros(1, 2000, 6, dtype=torch.float64))
    # One rounding to the dtype, and in float32 the rounding of an angle of less than a turn.
    budget = torch.finfo(dtype).eps + 4 * torch.finfo(torch.float32).eps
    assert (got.double() - want).abs().max() < budget


def test_sinusoids_own_no_numbers():
    assert not Sinusoidal(6).state_dict()


def test_sinusoids_can_be_scaled():
    x = torch.zeros(1, 5, 6)
    assert_close(Sinusoidal(6, scale=0.25)(x), 0.25 * Sinusoidal(6)(x))
    assert repr(Sinusoidal(6, scale=0.25)) == "Sinusoidal(dim=6, scale=0.25)"


def test_learned_rows_are_added_and_the_last_one_repeats():
    position = LearnedAbsolute(4, 3, dtype=torch.float64)
    x = normal(2, 5, 4)
    got = position(x)
    for p, row in enumerate([0, 1, 2, 2, 2]):
        assert_close(got[:, p], x[:, p] + position.rows[row])


@pytest.mark.no_typecheck
@pytest.mark.parametrize("start", [-1, 1.5, "3", torch.tensor([1, 2])])
def test_learned_rows_start_at_a_position_that_there_is(start):
    with pytest.raises(ValueError, match="LearnedAbsolute: start must be an integer >= 0, got"):
        LearnedAbsolute(4, 3)(torch.zeros(1, 5, 4), start=start)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("start", [1.5, "3", torch.tensor([1, 2])])
def test_waves_start_at_a_whole_position(start):
    with pytest.raises(ValueError, match="Sinusoidal: start must be an integer, got"):
        Sinusoidal(4)(torch.zeros(1, 5, 4), start=start)


def test_waves_go_on_before_the_first_position():
    x = normal(1, 9, 6)
    assert_close(Sinusoidal(6)(x, start=-4)[:, 4:], Sinusoidal(6)(x[:, 4:]))


@pytest.mark.no_typecheck
def test_an_input_of_another_kind_is_named():
    with pytest.raises(
        relpos.ShapeError, match=r"Sinusoidal: x must be floating point .* got .*64"
    ):
        Sinusoidal(4)(torch.ones(1, 3, 4, dtype=torch.int64))
    words = "LearnedAbsolute: x must be torch.float32 on cpu as the parameters are, got"
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(relpos.ShapeError, match=f"{words} {dtype} on cpu"):
            LearnedAbsolute(4, 3)(torch.zeros(1, 3, 4, dtype=dtype))
    with pytest.raises(relpos.ShapeError, match=f"{words} torch.float32 on meta"):
        LearnedAbsolute(4, 3)(torch.zeros(1, 3, 4, device="meta"))


def test_autocast_is_taken():
    x = torch.zeros(1, 3, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert LearnedAbsolute(4, 3)(x).isfinite().all()


def test_learned_rows_start_symmetric_around_zero():
    torch.manual_seed(0)
    rows = LearnedAbsolute(64, 500).rows
    assert abs(rows.mean()) < 0.003
    assert_close(rows.square().sum(-1).mean(), torch.tensor(1.0), rtol=0.02, atol=0)


def test_learned_rows_survive_copying_pickling_and_loading():
    position = LearnedAbsolute(4, 3)
    for other in (copy.deepcopy(position), pickle.loads(pickle.dumps(position))):
        assert torch.equal(other.rows, position.rows)
    other = LearnedAbsolute(4, 3)
    other.load_state_dict(position.state_dict())
    assert torch.equal(other.rows, position.rows)


def test_dtype_and_device_are_taken():
    rows = LearnedAbsolute(4, 3, device="meta", dtype=torch.bfloat16).rows
    assert rows.dtype == torch.bfloat16
    assert rows.is_meta


@pytest.mark.no_typecheck
@pytest.mark.parametrize("position", [Sinusoidal(4), LearnedAbsolute(4, 3)])
def test_an_input_of_another_width_is_named(position):
    name = type(position).__name__
    with pytest.raises(relpos.ShapeError, match=rf"{name}: x must be \(b, i, e\) with e=4, got"):
        position(torch.zeros(1, 2, 5))


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="Sinusoidal: dim must be an integer >= 1, got 0"):
        Sinusoidal(0)
    with pytest.raises(ValueError, match="LearnedAbsolute: max_length must be an integer >= 1"):
        LearnedAbsolute(4, 0)


@pytest.mark.no_typecheck
def test_a_scale_that_is_no_number_is_named():
    with pytest.raises(TypeError, match="Sinusoidal: scale must be a number, got 'x'"):
        Sinusoidal(4, scale="x")  # type: ignore[arg-type]
