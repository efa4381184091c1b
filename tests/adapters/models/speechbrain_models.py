"""SpeechBrain's Conformer, which is handed its positions."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case, padded

WIDTH = 32


class Frames(nn.Module):
    """The encoder with its positions; padding as a mask."""

    def __init__(self, file, name, **settings):
        super().__init__()
        encoder = getattr(import_apart(f"speechbrain.lobes.models.transformer.{file}"), name)
        self.encoder = encoder(
            num_layers=2, d_model=WIDTH, nhead=4, attention_type="RelPosMHAXL", **settings
        )
        self.positions = import_apart("speechbrain.nnet.attention").RelPosEncXL(WIDTH)

    def forward(self, x, attention_mask=None):
        padding = None if attention_mask is None else attention_mask == 0
        positions = self.positions(x).to(x.dtype)
        output, *_ = self.encoder(x, src_key_padding_mask=padding, pos_embs=positions)
        return SimpleNamespace(last_hidden_state=output)


def inputs(batch, length, padding):
    mask = padded(batch, length, padding)
    found = {"x": torch.randn(batch, length, WIDTH)}
    return found if mask is None else found | {"attention_mask": mask}


def drop(module, probability):
    module.dropout_att.p = probability


def case(name, file, encoder, *, first=False, **settings):
    return Case(
        name, partial(Frames, file, encoder, kernel_size=5, **settings), inputs,
        positions=("linear_pos", "pos_bias_v"), adapted=2, attention="encoder.layers.1.mha_layer",
        paddings=("none", "right"), pretrained=False, attentions=None, dropout=drop, first=first,
        long=2048, without=("half",), linears=("linear_pos", "out_proj"),
    )  # fmt: skip


CASES = [
    case("speechbrain", "Conformer", "ConformerEncoder", d_ffn=48, first=True),
    case("speechbrain branchformer", "Branchformer", "BranchformerEncoder", csgu_linear_units=48),
]
