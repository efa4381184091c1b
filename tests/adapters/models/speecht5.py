"""SpeechT5 from speech to text; its text encoder is the same behind other inputs."""

import torch
from transformers import SpeechT5Config, SpeechT5ForSpeechToText

from .case import Case, padded, tokens

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "encoder_layers": 2, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
    "tie_word_embeddings": False, "encoder_max_relative_position": 11, "conv_dim": (16,),
    "conv_stride": (2,), "conv_kernel": (2,), "feat_extract_norm": "layer",
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 4, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0, "positional_dropout": 0.0, "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0,
    "apply_spec_augment": False, "max_speech_positions": 2100, "decoder_start_token_id": 2,
}  # fmt: skip


def inputs(batch, length, padding):
    # The decoder, which has no relative positions, stays as it is: its tokens are few.
    decoder = tokens(batch, 9, "none")["input_ids"]
    given = {
        "input_values": torch.randn(batch, 2 * length),
        "decoder_input_ids": decoder,
        "labels": decoder,
    }
    mask = padded(batch, length, padding)
    return given if mask is None else given | {"attention_mask": mask.repeat_interleave(2, 1)}


CASES = [
    Case(
        "speecht5",
        lambda: SpeechT5ForSpeechToText(SpeechT5Config(**SIZES)),
        inputs,
        positions=("embed_positions.pe_k",),
        adapted=2,
        attention="speecht5.encoder.wrapped_encoder.layers.1.attention",
        output="logits",
        paddings=("none", "right"),
        generates=True,
        attentions="encoder_attentions",
        linears=("q_proj", "v_proj"),
        dropout=lambda attention, p: setattr(attention, "dropout", p),
        without=("pickle",),
    ),
]
