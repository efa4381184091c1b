"""Enformer and Borzoi: their transformers, called with what comes from their convolutions."""

from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case

WIDTH = 48


class Enformer(nn.Module):
    """Its layers of attention, with a name for what they give."""

    def __init__(self):
        super().__init__()
        config = import_apart("enformer_pytorch.config_enformer").EnformerConfig(
            dim=WIDTH, depth=2, heads=4, attn_dim_key=8, num_downsamples=3, dim_divisible_by=8,
            output_heads={"human": 2}, dropout_rate=0.0, attn_dropout=0.0, pos_dropout=0.0,
        )  # fmt: skip
        enformer = import_apart("enformer_pytorch.modeling_enformer").Enformer(config)
        self.transformer = enformer.transformer

    def forward(self, x):
        return SimpleNamespace(last_hidden_state=self.transformer(x))


class Borzoi(nn.Module):
    """Two layers, whose features, kept in float32, are in the dtype of the input."""

    def __init__(self):
        super().__init__()
        module = import_apart("borzoi_pytorch.pytorch_borzoi_transformer")
        self.embed = module.get_positional_embed
        self.layers = nn.ModuleList(
            module.Attention(WIDTH, num_rel_pos_features=32, heads=4, dim_key=8, dim_value=12)
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            layer.positions = self.embed(x.shape[1], 4096, 32, x.device).to(x.dtype)
            x = x + layer(norm(x))
        return SimpleNamespace(last_hidden_state=x)


def inputs(batch, length, padding):
    return {"x": torch.randn(batch, length, WIDTH)}


def drop(module, probability):
    module.attn_dropout.p = probability


def case(name, build, attention, **settings):
    return Case(
        name, build, inputs, positions=("to_rel_k", "rel_pos_bias"), adapted=2,
        attention=attention, paddings=("none",), pretrained=False, attentions=None, dropout=drop,
        linears=("to_q", "to_rel_k"), **settings,
    )  # fmt: skip


CASES = [
    case("enformer", Enformer, "transformer.1.0.fn.1"),
    case("borzoi", Borzoi, "layers.1"),
]
