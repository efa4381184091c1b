"""FastSpeech2-Conformer's encoder; the whole model runs in float32 alone."""

import torch
from transformers import FastSpeech2ConformerConfig
from transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer import (
    FastSpeech2ConformerEncoder,
)

from .case import Case, padded

SIZES = {
    "hidden_size": 32, "vocab_size": 50, "num_mel_bins": 8, "encoder_num_attention_heads": 4,
    "encoder_layers": 2, "encoder_linear_units": 48, "decoder_layers": 2,
    "decoder_num_attention_heads": 2, "decoder_linear_units": 48, "encoder_kernel_size": 3,
    "decoder_kernel_size": 5, "speech_decoder_postnet_layers": 2, "speech_decoder_postnet_units": 8,
    "duration_predictor_channels": 8, "energy_predictor_channels": 8,
    "pitch_predictor_channels": 8, "encoder_dropout_rate": 0.0,
    "encoder_positional_dropout_rate": 0.0, "encoder_attention_dropout_rate": 0.0,
    "decoder_dropout_rate": 0.0, "decoder_positional_dropout_rate": 0.0,
    "decoder_attention_dropout_rate": 0.0, "duration_predictor_dropout_rate": 0.0,
    "energy_predictor_dropout": 0.0, "pitch_predictor_dropout": 0.0,
    "speech_decoder_postnet_dropout": 0.0,
}  # fmt: skip


def build():
    config = FastSpeech2ConformerConfig(**SIZES)
    return FastSpeech2ConformerEncoder(config, config.encoder_config, use_encoder_input_layer=True)


def inputs(batch, length, padding):
    ids = {"input_tensor": torch.randint(1, 50, (batch, length)), "return_dict": True}
    mask = padded(batch, length, padding)
    return ids if mask is None else ids | {"attention_mask": mask[:, None]}


def real(hidden, inputs):
    mask = inputs.get("attention_mask")
    return hidden if mask is None else hidden[mask[:, 0].bool()]


CASES = [
    Case(
        "fastspeech2_conformer",
        build,
        inputs,
        positions=("linear_pos", "pos_bias_v"),
        adapted=2,
        attention="conformer_layers.1.self_attn",
        real=real,
        first=False,
        linears=("linear_q", "linear_v"),
        dropout=lambda attention, p: setattr(attention.dropout, "p", p),
    )
]
