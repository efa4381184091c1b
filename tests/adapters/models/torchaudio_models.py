"""torchaudio's WavLM, with the gate and without."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case

SIZES = {
    "extractor_mode": "layer_norm", "extractor_conv_layer_config": [(16, 2, 2)],
    "extractor_conv_bias": False, "encoder_embed_dim": 32, "encoder_projection_dropout": 0.0,
    "encoder_pos_conv_kernel": 4, "encoder_pos_conv_groups": 4, "encoder_num_layers": 3,
    "encoder_num_heads": 4, "encoder_num_buckets": 12, "encoder_max_distance": 15,
    "encoder_attention_dropout": 0.0, "encoder_ff_interm_features": 48,
    "encoder_ff_interm_dropout": 0.0, "encoder_dropout": 0.0, "encoder_layer_norm_first": False,
    "encoder_layer_drop": 0.0, "aux_num_out": None,
}  # fmt: skip


class Frames(nn.Module):
    """The model, with a name for what it gives. Its own lengths its attention refuses."""

    def __init__(self, *, gated):
        super().__init__()
        self.model = import_apart("torchaudio.models.wav2vec2.model").wavlm_model(**SIZES)
        for layer in self.model.encoder.transformer.layers:
            layer.attention.gru_rel_pos = gated

    def forward(self, waveforms):
        return SimpleNamespace(last_hidden_state=self.model(waveforms)[0])


def inputs(batch, length, padding):
    return {"waveforms": torch.randn(batch, 2 * length)}


def drop(attention, probability):
    attention.dropout = probability


def case(name, *, gated):
    return Case(
        name, partial(Frames, gated=gated), inputs, positions=("rel_attn_embed",), adapted=3,
        attention="model.encoder.transformer.layers.1.attention", paddings=("none",),
        pretrained=False, attentions=None, dropout=drop, first=gated,
        linears=("intermediate_dense", "output_dense"), cancelling=("gru_rel_pos",),
        without=("pickle",),
    )  # fmt: skip


CASES = [case("torchaudio wavlm", gated=True), case("torchaudio wavlm, no gate", gated=False)]
