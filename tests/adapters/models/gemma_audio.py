"""The audio encoders of Gemma 3n and Gemma 4."""

import torch
from transformers import (
    Gemma3nAudioConfig,
    Gemma3nAudioEncoder,
    Gemma4AudioConfig,
    Gemma4AudioModel,
)

from .case import Case, padded

SIZES_3N = {
    "input_feat_size": 16, "hidden_size": 32, "conf_attention_chunk_size": 5,
    "conf_attention_context_left": 8, "conf_attention_context_right": 0,
    "conf_attention_logit_cap": 5.0, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 2,
    "conf_conv_kernel_size": 3, "conf_reduction_factor": 1, "sscp_conv_channel_size": (8, 4),
    "vocab_size": 8,
}  # fmt: skip
SIZES_4 = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "subsampling_conv_channels": (16, 4), "conv_kernel_size": 3, "attention_chunk_size": 5,
    "attention_context_left": 8, "attention_context_right": 0, "attention_logit_cap": 5.0,
    "output_proj_dims": 24, "gradient_clipping": 1e4,
    "attention_invalid_logits_value": -1e4,
}  # fmt: skip


def inputs_3n(batch, length, padding):
    mask = padded(batch, length, padding)
    padding_mask = torch.zeros(batch, length, dtype=torch.bool) if mask is None else mask == 0
    return {"audio_mel": torch.randn(batch, length, 16), "audio_mel_mask": padding_mask}


def inputs_4(batch, length, padding):
    features = {"input_features": torch.randn(batch, length, 16)}
    mask = padded(batch, length, padding)
    return features if mask is None else features | {"attention_mask": mask.bool()}


def real_4(hidden, inputs):
    """The frames of each sequence that hold real features."""
    mask = inputs.get("attention_mask")
    return hidden if mask is None else hidden[mask[:, ::2][:, ::2]]


def gemma3n(name, **options):
    return Case(
        name,
        lambda: Gemma3nAudioEncoder(Gemma3nAudioConfig(**SIZES_3N | options)),
        inputs_3n,
        positions=("pos_proj",),
        adapted=2,
        attention="conformer.1.attention.attn",
        lengths=(67, 40),
        long=2048,
        attentions=None,
        linears=("q_proj", "v_proj"),
        local=True,
        first=not options,
    )


def gemma4(name, **options):
    return Case(
        name,
        lambda: Gemma4AudioModel(Gemma4AudioConfig(**SIZES_4 | options)),
        inputs_4,
        positions=("relative_k_proj",),
        adapted=2,
        attention="layers.1.self_attn",
        real=real_4,
        lengths=(67, 40),
        # Its convolutions take padding that is left of the tokens for tokens.
        paddings=("none", "right"),
        long=2048,
        linears=("q_proj.linear", "v_proj.linear"),
        local=True,
        first=not options,
    )


CASES = [
    gemma3n("gemma3n audio"),
    gemma3n("gemma3n audio with keys ahead", conf_attention_context_right=3),
    gemma4("gemma4 audio"),
    gemma4("gemma4 audio with keys ahead", attention_context_right=3, attention_chunk_size=12),
]
