"""Data2Vec's vision: BEiT's biases, in classes of its own for eager attention and for SDPA."""

from dataclasses import replace

from transformers import Data2VecVisionConfig, Data2VecVisionModel

from .beit import SIZES, inputs
from .case import Case


def build(implementation, **settings):
    config = Data2VecVisionConfig(**SIZES, **settings, attn_implementation=implementation)
    return Data2VecVisionModel(config, add_pooling_layer=False)


def drop(module, probability):
    module.dropout.p = probability


OWN = Case(
    "data2vec vision",
    lambda: build("eager", use_relative_position_bias=True),
    inputs,
    positions=("relative_position_bias_table",),
    adapted=2,
    attention="encoder.layer.1.attention.attention",
    lengths=(77, 6, 81),
    paddings=("none",),
    long=1640,
    linears=("query", "value"),
    dropout=drop,
)
CASES = [
    OWN,
    replace(
        OWN, name="data2vec vision, sdpa, one bias for all layers", first=False, attentions=None,
        build=lambda: build("sdpa", use_shared_relative_position_bias=True), dropout=None,
    ),
]  # fmt: skip
