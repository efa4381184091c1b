"""SEW-D."""

import torch
from transformers import SEWDConfig, SEWDModel

from .case import Case, padded

# A sample is a frame, and two frames are one token of the transformer.
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": (16,), "conv_stride": (1,), "conv_kernel": (1,), "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "max_position_embeddings": 20,
    "feat_extract_norm": "layer", "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "apply_spec_augment": False,
}  # fmt: skip


def inputs(batch, length, padding):
    sound = {"input_values": torch.randn(batch, length)}
    mask = padded(batch, length, padding)
    return sound if mask is None else sound | {"attention_mask": mask}


def case(name, *, first=False, **options):
    return Case(
        name,
        lambda: SEWDModel(SEWDConfig(**SIZES, **options)),
        inputs,
        positions=("rel_embeddings",),
        adapted=2,
        attention="encoder.encoder.layer.1.attention.self",
        lengths=(66, 41),
        paddings=("none", "right"),
        long=2048,
        first=first,
        # Its convolution has a weight norm.
        without=("pickle",),
        linears=("query_proj", "value_proj"),
        dropout=lambda attention, p: setattr(attention.dropout, "drop_prob", p),
    )


CASES = [
    case("sew_d", first=True, position_buckets=8),
    case("sew_d without buckets", position_buckets=-1, share_att_key=False),
]
