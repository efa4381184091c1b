"""Nemotron's streaming encoder, all of the audio at once."""

import torch
from transformers import NemotronAsrStreamingEncoder, NemotronAsrStreamingEncoderConfig

from .case import Case, padded

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "num_mel_bins": 16, "subsampling_conv_channels": 8, "subsampling_factor": 2,
    "conv_kernel_size": 3, "sliding_window": 9, "default_num_lookahead_tokens": 2, "dropout": 0.0,
    "dropout_positions": 0.0, "layerdrop": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip


def inputs(batch, length, padding, lookahead):
    features = {
        "input_features": torch.randn(batch, length, 16),
        "num_lookahead_tokens": lookahead,
    }
    mask = padded(batch, length, padding)
    return features if mask is None else features | {"attention_mask": mask}


def build():
    return NemotronAsrStreamingEncoder(NemotronAsrStreamingEncoderConfig(**SIZES))


def real(hidden, inputs):
    """The frames of each sequence that hold real features."""
    if "attention_mask" not in inputs:
        return hidden
    counts = inputs["attention_mask"].sum(-1) // 2
    return hidden[torch.arange(hidden.shape[1]) < counts[:, None]]


def case(name, lookahead, *, first):
    return Case(
        name,
        build,
        lambda batch, length, padding: inputs(batch, length, padding, lookahead),
        positions=("relative_k_proj",),
        adapted=2,
        attention="layers.1.self_attn",
        real=real,
        lengths=(67, 40),
        paddings=("none", "right"),
        long=2048,
        first=first,
        attentions=None,
        linears=("q_proj", "v_proj"),
        dropout=lambda attention, p: setattr(attention, "attention_dropout", p),
    )


# Under "sdpa", the default: the original's eager attention gives NaN, weights too.
CASES = [
    case("nemotron_asr_streaming", 2, first=True),
    case("nemotron_asr_streaming without lookahead", 0, first=False),
]
