"""NeMo's Conformer: contexts to either side, and chunks."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case, padded

WIDTH = 16


class Frames(nn.Module):
    """The encoder, called with frames before features, and padding as a mask."""

    def __init__(self, **settings):
        super().__init__()
        encoder = import_apart("nemo.collections.asr.modules.conformer_encoder").ConformerEncoder
        self.encoder = encoder(
            feat_in=WIDTH, n_layers=2, d_model=32, n_heads=4, subsampling=None,
            ff_expansion_factor=1, conv_kernel_size=5, dropout=0.0, dropout_pre_encoder=0.0,
            dropout_emb=0.0, pos_emb_max_len=64, sync_max_audio_length=False, **settings,
        )  # fmt: skip

    def forward(self, x, attention_mask=None):
        length = None if attention_mask is None else attention_mask.sum(1)
        output, _ = self.encoder(audio_signal=x.mT, length=length)
        return SimpleNamespace(last_hidden_state=output.mT)


def inputs(batch, length, padding):
    mask = padded(batch, length, padding)
    found = {"x": torch.randn(batch, length, WIDTH)}
    return found if mask is None else found | {"attention_mask": mask}


def drop(module, probability):
    module.dropout.p = probability


def case(name, *, first=False, **settings):
    return Case(
        name, partial(Frames, **settings), inputs, positions=("linear_pos", "pos_bias_v"),
        adapted=2, attention="encoder.layers.1.self_attn", paddings=("none", "right"),
        pretrained=False, attentions=None, without=("pickle",), dropout=drop, first=first,
        long=2048, linears=("linear_q", "linear_out"),
    )  # fmt: skip


CHUNKS = {"att_context_style": "chunked_limited"}

CASES = [
    case("nemo", first=True),
    case("nemo without biases, one for all layers", use_bias=False, untie_biases=False),
    case("nemo with a context", att_context_size=[6, 2]),
    case("nemo with a context to the left", att_context_size=[6, -1]),
    case("nemo in chunks", att_context_size=[8, 3], **CHUNKS),
    case("nemo in chunks, with all before", att_context_size=[-1, 3], **CHUNKS),
]
