"""What schemes give linear modules whose weights are packed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relpos.layers import GridAttention, MultiheadAttention
from relpos.positions import ContinuousBias, Deberta, TransformerXL
from relpos.positions.quantized import input_dtype
from tests.quantized import IntegerWeight, pack
from tests.replicas import replica


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


class Float32Only(IntegerWeight):
    """A packed module that computes in float32, whatever autocast says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return nn.functional.linear(x, self.numbers(), self.bias)


def test_in_a_replica_they_are_of_the_dtype_of_the_modules_parameters():
    layer = MultiheadAttention(64, 4, position=TransformerXL(16, 4))
    pack(layer.position, Float32Only)
    x = torch.randn(2, 30, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        want = layer(x, x, x, need_weights=False)[0]
        assert torch.equal(replica(layer)(x, x, x, need_weights=False)[0], want)


def test_tables_that_are_asked_for_are_where_the_parameters_are():
    transformer_xl = TransformerXL(16, 4, device="meta", biases=False)
    bias = ContinuousBias(4, (3, 3), device="meta")
    for inside in (transformer_xl, replica(transformer_xl)):
        assert inside.rows(-3, 3).device.type == "meta"
    for inside in (bias, replica(bias)):
        assert inside.dense().device.type == "meta"


def test_they_are_where_buffers_are_if_there_is_no_parameter():
    position = TransformerXL(16, 4, biases=False)
    position.linear_pos = nn.Module()
    position.linear_pos.register_buffer("packed", torch.zeros(2, device="meta"))
    position.linear_pos.forward = lambda x: torch.zeros(len(x), 64, device=x.device)
    assert position.rows(-3, 3).device.type == "meta"


def test_tables_may_be_asked_for_in_a_dtype_that_nothing_else_says():
    position = TransformerXL(16, 4, biases=False).bfloat16()
    bias = ContinuousBias(4, (3, 3), cosine=False).bfloat16()
    pack(position)
    pack(bias)
    assert position.rows(-3, 3, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert bias.dense(dtype=torch.bfloat16).dtype == torch.bfloat16
