"""The dtype of parameters: what every scheme and layer takes, and what it refuses in words."""

from inspect import signature

import pytest
import torch

from relpos import adapters, layers, positions

# One of each class that takes a dtype.
MADE = {
    positions.AbsoluteKeys: lambda dtype: positions.AbsoluteKeys(4, 7, dtype=dtype),
    positions.Alibi: lambda dtype: positions.Alibi(2, learned=True, dtype=dtype),
    positions.Bidirectional: lambda dtype: positions.Bidirectional(4, 7, dtype=dtype),
    positions.ContinuousBias: lambda dtype: positions.ContinuousBias(2, (2, 3), dtype=dtype),
    positions.Deberta: lambda dtype: positions.Deberta(4, 2, 7, dtype=dtype),
    positions.DebertaEmbedding: lambda dtype: positions.DebertaEmbedding(
        8, 7, norm=True, dtype=dtype
    ),
    positions.GatedBias: lambda dtype: positions.GatedBias(positions.Alibi(2), 2, 4, dtype=dtype),
    positions.Grid: lambda dtype: positions.Grid(4, (2, 3), values=True, dtype=dtype),
    positions.Huang: lambda dtype: positions.Huang(4, 7, dtype=dtype),
    positions.Kerple: lambda dtype: positions.Kerple(2, dtype=dtype),
    positions.LearnedAbsolute: lambda dtype: positions.LearnedAbsolute(8, 7, dtype=dtype),
    positions.RelativeLogits: lambda dtype: positions.RelativeLogits(7, 3, 2, 8, dtype=dtype),
    positions.Shaw: lambda dtype: positions.Shaw(4, 3, dtype=dtype),
    positions.T5Bias: lambda dtype: positions.T5Bias(2, dtype=dtype),
    positions.TransformerXL: lambda dtype: positions.TransformerXL(4, 2, dtype=dtype),
    positions.WindowBias: lambda dtype: positions.WindowBias(2, (2, 3), dtype=dtype),
    adapters.AbsPosEmb1D: lambda dtype: adapters.AbsPosEmb1D(7, 4, dtype=dtype),
    adapters.RelPosEmb1D: lambda dtype: adapters.RelPosEmb1D(7, 4, dtype=dtype),
    adapters.RelPosEmb2D: lambda dtype: adapters.RelPosEmb2D((2, 3), 4, dtype=dtype),
    adapters.NeighborhoodAttention1D: lambda dtype: adapters.NeighborhoodAttention1D(
        8, 2, 3, dtype=dtype
    ),
    adapters.NeighborhoodAttention2D: lambda dtype: adapters.NeighborhoodAttention2D(
        8, 2, 3, dtype=dtype
    ),
    adapters.NeighborhoodAttention3D: lambda dtype: adapters.NeighborhoodAttention3D(
        8, 2, 3, dtype=dtype
    ),
    adapters.RelativeGlobalAttention: lambda dtype: adapters.RelativeGlobalAttention(
        8, 2, dtype=dtype
    ),
    layers.BottleneckBlock: lambda dtype: layers.BottleneckBlock(
        8, (2, 3), dim_out=8, dim_head=4, dtype=dtype
    ),
    layers.GridAttention: lambda dtype: layers.GridAttention(8, 2, dtype=dtype),
    layers.MultiheadAttention: lambda dtype: layers.MultiheadAttention(8, 2, dtype=dtype),
}
each_class = pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)


def test_every_class_that_takes_a_dtype_is_among_them():
    modules = (positions, adapters, layers)
    members = [member for module in modules for member in vars(module).values()]
    classes = {member for member in members if isinstance(member, type)}
    assert {one for one in classes if "dtype" in signature(one).parameters} == set(MADE)


@each_class
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_parameters_have_the_dtype_that_is_given(made, dtype):
    assert {numbers.dtype for numbers in MADE[made](dtype).parameters()} == {dtype}


@each_class
@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    "dtype",
    [torch.complex64, torch.complex32, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn,
     torch.float8_e5m2, "float32", float],
    ids=str,
)  # fmt: skip
def test_a_dtype_that_attention_cannot_compute_with_is_named(made, dtype):
    words = f"^{made.__name__}: dtype must be floating point of 16, 32 or 64 bits, got "
    with pytest.raises(ValueError, match=words):
        MADE[made](dtype)
