import pytest
import torch

from relpos.positions.unscaled import check_scale, unscaled


@pytest.mark.parametrize("scale", [None, 0.25, 3.0])
def test_times_the_scale_of_attention_gives_the_rows_again(scale):
    rows = torch.randn(2, 3, 5, dtype=torch.float64)
    again = unscaled(rows, scale, 5) * (5**-0.5 if scale is None else scale)
    torch.testing.assert_close(again, rows)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_what_cannot_be_divided_by_is_named(scale):
    with pytest.raises(ValueError, match=f"Name: scale must be a positive number, got {scale}"):
        check_scale("Name", scale)
    assert check_scale("Name", None) is None
    assert check_scale("Name", 0.5) == 0.5
