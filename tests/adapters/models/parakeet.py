"""Parakeet: its encoder, and the model with a CTC head."""

import torch
from transformers import ParakeetCTCConfig, ParakeetForCTC

from .case import Case, padded

ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "num_mel_bins": 16, "subsampling_conv_channels": 8, "subsampling_factor": 2, "dropout": 0.0,
    "dropout_positions": 0.0, "layerdrop": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip


def inputs(batch, length, padding):
    features = {"input_features": torch.randn(batch, length, 16)}
    mask = padded(batch, length, padding)
    if mask is None:
        return features
    # Its loss needs the mask.
    return features | {"attention_mask": mask, "labels": torch.randint(1, 9, (batch, 4))}


def real(logits, inputs):
    """The frames of each sequence that hold real features."""
    if "attention_mask" not in inputs:
        return logits
    counts = (inputs["attention_mask"].sum(-1) - 1) // 2 + 1
    return logits[torch.arange(logits.shape[1]) < counts[:, None]]


def build():
    return ParakeetForCTC(ParakeetCTCConfig(vocab_size=10, pad_token_id=0, encoder_config=ENCODER))


CASES = [
    Case(
        "parakeet",
        build,
        inputs,
        positions=("relative_k_proj",),
        adapted=2,
        attention="encoder.layers.1.self_attn",
        output="logits",
        real=real,
        lengths=(67, 40),
        paddings=("none", "right"),
        long=2048,
        linears=("q_proj", "v_proj"),
        dropout=lambda attention, p: setattr(attention, "attention_dropout", p),
    ),
]
