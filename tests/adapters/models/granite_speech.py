"""Granite Speech: its three encoders, one with a CTC head."""

import torch
from transformers import (
    GraniteSpeech5CTCConfig,
    GraniteSpeech5ForCTC,
    GraniteSpeechEncoderConfig,
    GraniteSpeechPlusEncoderConfig,
)
from transformers.models.granite_speech.modeling_granite_speech import GraniteSpeechCTCEncoder
from transformers.models.granite_speech_plus.modeling_granite_speech_plus import (
    GraniteSpeechPlusCTCEncoder,
)

from .case import Case, padded

SIZES = {
    "input_dim": 16, "num_layers": 2, "hidden_dim": 32, "feedforward_mult": 2, "num_heads": 4,
    "output_dim": 9, "context_size": 9, "max_pos_emb": 11, "dropout": 0.0,
}  # fmt: skip
SIZES5 = {
    "vocab_size": 10, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_mel_bins": 4, "max_position_embeddings": 11, "context_size": 5,
    "subsample_layers": [0],
}  # fmt: skip


def frames(batch, length, padding):
    return {"hidden_states": torch.randn(batch, length, 16)}


def features(batch, length, padding):
    given = {"input_features": torch.randn(batch, length, 16)}
    mask = padded(batch, length, padding)
    if mask is None:
        return given
    # Its loss needs the mask.
    return given | {"attention_mask": mask, "labels": torch.randint(1, 10, (batch, 4))}


def real(logits, inputs):
    """The frames, of half as many, whose features are all real."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return logits
    return logits[mask[:, : mask.shape[1] // 2 * 2].unflatten(1, (-1, 2)).bool().all(2)]


def case(name, build, **options):
    return Case(
        name,
        build,
        frames,
        positions=("rel_pos_emb",),
        adapted=2,
        attention="layers.1.attn",
        paddings=("none",),
        long=2048,
        attentions=None,
        linears=("to_q", "to_kv"),
        local=True,
        **options,
    )


CASES = [
    case("granite_speech", lambda: GraniteSpeechCTCEncoder(GraniteSpeechEncoderConfig(**SIZES))),
    case(
        "granite_speech_plus",
        lambda: GraniteSpeechPlusCTCEncoder(GraniteSpeechPlusEncoderConfig(**SIZES)),
        first=False,
        lengths=(36, 7),
    ),
    Case(
        "granite_speech5",
        lambda: GraniteSpeech5ForCTC(GraniteSpeech5CTCConfig(vocab_size=10, encoder_config=SIZES5)),
        features,
        positions=("rel_pos_emb",),
        adapted=3,
        attention="encoder.layers.1.self_attn",
        output="logits",
        real=real,
        lengths=(67, 40),
        paddings=("none", "right"),
        attentions=None,
        long=2048,
        dropout=lambda attention, p: setattr(attention, "attention_dropout", p),
        local=True,
    ),
]
