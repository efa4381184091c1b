"""WavLM as its authors published it, in s3prl and Coqui, with the gate and without."""

from functools import partial
from types import SimpleNamespace
from warnings import catch_warnings, simplefilter

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from tests.apart import import_apart

from .case import Case, padded

SIZES = {
    "extractor_mode": "layer_norm", "conv_feature_layers": "[(16, 2, 2)]", "encoder_layers": 3,
    "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 48, "encoder_attention_heads": 4,
    "num_buckets": 12, "max_distance": 15, "conv_pos": 4, "conv_pos_groups": 4,
    "relative_position_embedding": True, "dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "dropout_input": 0.0,
}  # fmt: skip


def copied(module, args):
    return tuple(x.clone() for x in args)


class Frames(nn.Module):
    """The model, with names for what it takes and gives."""

    def __init__(self, package="s3prl.upstream.wavlm", file="WavLM", **settings):
        super().__init__()
        module = import_apart(f"{package}.{file}")
        config = module.WavLMConfig({**SIZES, **settings})
        with catch_warnings():
            simplefilter("ignore")  # of the older weight_norm
            self.model = module.WavLM(config)
        # A module with it cannot be copied.
        convolution = self.model.encoder.pos_conv[0]
        if is_parametrized(convolution):
            remove_parametrizations(convolution, "weight")
        else:
            nn.utils.remove_weight_norm(convolution)

        # Coqui's adds to the convolution's input in place, which its gradients need.
        self.model.encoder.pos_conv.register_forward_pre_hook(copied)

    def forward(self, waveforms, attention_mask=None):
        padding = None
        if attention_mask is not None:
            padding = attention_mask.repeat_interleave(2, 1) == 0
        found, _ = self.model.extract_features(waveforms, padding_mask=padding)
        return SimpleNamespace(last_hidden_state=found)


def inputs(batch, length, padding):
    found = {"waveforms": torch.randn(batch, 2 * length)}
    if padding != "none":
        found["attention_mask"] = padded(batch, length, padding)
    return found


def drop(attention, probability):
    attention.dropout_module.p = probability


def case(name, *, first=True, paddings=("none", "right"), **settings):
    return Case(
        name, partial(Frames, **settings), inputs, positions=("relative_attention_bias",),
        adapted=3, attention="model.encoder.layers.1.self_attn", paddings=paddings,
        pretrained=False, attentions=None, dropout=drop, first=first,
        linears=("fc1", "fc2"), cancelling=("grep_",),
    )  # fmt: skip


CASES = [
    case("s3prl wavlm", gru_rel_pos=True, layer_norm_first=True),
    case("s3prl wavlm, no gate", gru_rel_pos=False, first=False),
    case(
        "freevc wavlm", package="TTS.vc.layers.freevc.wavlm", file="wavlm", gru_rel_pos=True,
        layer_norm_first=True, first=False, paddings=("none",),
    ),
]  # fmt: skip
