"""WavLM: both encoders, one with a CTC head."""

import torch
from transformers import WavLMConfig, WavLMForCTC, WavLMModel

from .case import Case, padded

SIZES = {
    "vocab_size": 12, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "conv_dim": (16,), "conv_stride": (2,), "conv_kernel": (2,),
    "feat_extract_norm": "layer", "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 4,
    "num_buckets": 12, "max_bucket_distance": 15, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0, "layerdrop": 0.0,
    "apply_spec_augment": False,
}  # fmt: skip


def inputs(batch, length, padding):
    samples = {"input_values": torch.randn(batch, 2 * length)}
    mask = padded(batch, length, padding)
    return samples if mask is None else samples | {"attention_mask": mask.repeat_interleave(2, 1)}


def labelled(batch, length, padding):
    return inputs(batch, length, padding) | {"labels": torch.randint(1, 12, (batch, 4))}


def real(output, inputs):
    """The frames of real samples."""
    mask = inputs.get("attention_mask")
    return output if mask is None else output[mask[:, ::2].bool()]


def case(name, build, inputs, **options):
    return Case(
        name,
        build,
        inputs,
        positions=("rel_attn_embed",),
        adapted=3,
        attention=("wavlm." if "ctc" in name else "") + "encoder.layers.1.attention",
        real=real,
        paddings=("none", "right"),
        # The original passes by what wraps the projections of its attention.
        linears=("intermediate_dense", "output_dense"),
        dropout=lambda attention, p: setattr(attention, "dropout", p),
        # Of the gate and its constant.
        cancelling=("gru_rel_pos",),
        without=("pickle",),
        **options,
    )


CASES = [
    case("wavlm ctc", lambda: WavLMForCTC(WavLMConfig(**SIZES)), labelled, output="logits"),
    case(
        "wavlm with stable layer norm",
        lambda: WavLMModel(WavLMConfig(**SIZES, do_stable_layer_norm=True)),
        inputs,
    ),
]
