"""Wav2Vec2-Conformer, from the samples on."""

import torch
from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerForCTC

from .case import Case, padded

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": (8, 8), "conv_kernel": (3, 3), "conv_stride": (2, 1), "vocab_size": 12,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "conv_depthwise_kernel_size": 5, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "conformer_conv_dropout": 0.0,
    "final_dropout": 0.0, "layerdrop": 0.0, "apply_spec_augment": False,
}  # fmt: skip


def inputs(batch, length, padding):
    samples = {
        "input_values": torch.randn(batch, length),
        "labels": torch.randint(1, 9, (batch, 4)),
    }
    mask = padded(batch, length, padding)
    return samples if mask is None else samples | {"attention_mask": mask}


def real(logits, inputs):
    """The frames of each sequence that hold real samples."""
    if "attention_mask" not in inputs:
        return logits
    counts = (inputs["attention_mask"].sum(-1) - 3) // 2 + 1 - 2
    return logits[torch.arange(logits.shape[1]) < counts[:, None]]


CASES = [
    Case(
        "wav2vec2_conformer",
        lambda: Wav2Vec2ConformerForCTC(Wav2Vec2ConformerConfig(**SIZES)),
        inputs,
        positions=("linear_pos", "pos_bias_v"),
        adapted=2,
        attention="wav2vec2_conformer.encoder.layers.1.self_attn",
        output="logits",
        real=real,
        lengths=(67, 40),
        paddings=("none", "right"),
        long=2048,
        first=False,
        linears=("linear_q", "linear_v"),
    )
]
