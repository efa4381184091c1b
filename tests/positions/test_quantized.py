"""What schemes give linear modules whose weights are packed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relpos.layers import GridAttention, MultiheadAttention
from relpos.positions import ContinuousBias, Deberta, TransformerXL
from relpos.positions.quantized import input_dtype
from tests.quantized import pack


class Adds(nn.Module):
    """A packed module with a parameter of another dtype inside, as of LoRA."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.zeros(2, 2))
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("biases", [False, True])
def test_sinusoids_are_of_the_dtype_of_queries_whatever_is_beside_them(biases: bool):
    layer = MultiheadAttention(64, 4, position=TransformerXL(16, 4, biases=biases)).bfloat16()
    pack(layer.position)
    layer.position.linear_pos = Adds(layer.position.linear_pos)
    x = torch.randn(2, 30, 64, dtype=torch.bfloat16)
    assert layer(x, x, x, need_weights=False)[0].dtype == torch.bfloat16


def test_coordinates_are_of_the_dtype_of_queries_whatever_biases_became():
    position = ContinuousBias(4, (4, 5), cosine=False)
    layer, x = GridAttention(64, 4, position=position), torch.randn(2, 64, 4, 5)
    want = layer(x)
    pack(position)
    position.cpb_mlp[0].bias.data = position.cpb_mlp[0].bias.data.bfloat16()
    position.cpb_mlp[0].forward = lambda x, linear=position.cpb_mlp[0]: nn.functional.linear(
        x, linear.numbers(), linear.bias.to(x.dtype)
    )
    with torch.no_grad():
        error = layer(x) - want
    assert float(error.norm()) < 0.1 * float(want.detach().norm())
    assert position.dense().dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_8_bits_say_nothing(dtype: torch.dtype):
    linear = nn.Linear(8, 8).to(dtype)
    assert input_dtype(linear, nn.Sequential(linear), torch.float16) == torch.float16
    position = Deberta(4, 2, dim=8, max_relative_positions=9)
    position.key_proj.weight.data = position.key_proj.weight.data.to(dtype)
    position.key_proj.forward = lambda x, linear=position.key_proj: nn.functional.linear(
        x, linear.weight.to(x.dtype), linear.bias
    )
    q = torch.randn(1, 2, 5, 4)
    assert position(q, q)[2].keys is not None
