"""FunASR's Conformer and Branchformers, whose attention is a copy of ESPnet's."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case, padded


class Frames(nn.Module):
    """The encoder, with a mask in place of lengths, of which one must be the whole."""

    def __init__(self, model, name, **settings):
        super().__init__()
        encoder = getattr(import_apart(f"funasr.models.{model}.encoder"), name)
        self.encoder = encoder(
            16, 32, attention_heads=4, num_blocks=2, dropout_rate=0.0, positional_dropout_rate=0.0,
            attention_dropout_rate=0.0, input_layer="linear", **settings,
        )  # fmt: skip

    def forward(self, x, mask=None):
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        (x, _), _ = self.encoder.encoders(self.encoder.embed(x), mask[:, None])
        return SimpleNamespace(last_hidden_state=self.encoder.after_norm(x))


def inputs(batch, length, padding):
    mask = padded(batch, length, padding)
    found = {"x": torch.randn(batch, length, 16)}
    return found if mask is None else found | {"mask": mask.bool()}


def case(name, model, encoder, *, attention="self_attn", first=False, form="latest", **settings):
    return Case(
        name, partial(Frames, model, encoder, rel_pos_type=form, **settings), inputs,
        positions=("linear_pos", "pos_bias_v"), adapted=2,
        attention=f"encoder.encoders.1.{attention}", paddings=("none", "right"), pretrained=False,
        attentions=None, without=("pickle",), first=first,
    )  # fmt: skip


CASES = [
    case(
        "funasr", "conformer", "ConformerEncoder", linear_units=48, macaron_style=True,
        cnn_module_kernel=5, first=True,
    ),
    case(
        "funasr legacy", "conformer", "ConformerEncoder", linear_units=48, form="legacy",
        first=True,
    ),
    case(
        "funasr branchformer", "branchformer", "BranchformerEncoder", attention="attn",
        attention_layer_type="rel_selfattn", pos_enc_layer_type="rel_pos", cgmlp_linear_units=48,
        cgmlp_conv_kernel=5,
    ),
    case(
        "funasr e_branchformer", "e_branchformer", "EBranchformerEncoder", attention="attn",
        attention_layer_type="rel_selfattn", pos_enc_layer_type="rel_pos", cgmlp_linear_units=48,
        cgmlp_conv_kernel=5, linear_units=48,
    ),
]  # fmt: skip
