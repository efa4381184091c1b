"""FunASR's Conformer, whose attention is a copy of ESPnet's."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case, padded


class Frames(nn.Module):
    """The encoder, with a mask in place of lengths, of which one must be the whole."""

    def __init__(self):
        super().__init__()
        encoder = import_apart("funasr.models.conformer.encoder").ConformerEncoder
        self.encoder = encoder(
            16, 32, 4, 48, 2, 0.0, 0.0, 0.0, input_layer="linear", macaron_style=True,
            rel_pos_type="latest", cnn_module_kernel=5,
        )  # fmt: skip

    def forward(self, x, mask=None):
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        (x, _), _ = self.encoder.encoders(self.encoder.embed(x), mask[:, None])
        return SimpleNamespace(last_hidden_state=self.encoder.after_norm(x))


def inputs(batch, length, padding):
    mask = padded(batch, length, padding)
    found = {"x": torch.randn(batch, length, 16)}
    return found if mask is None else found | {"mask": mask.bool()}


CASES = [
    Case(
        "funasr", partial(Frames), inputs, positions=("linear_pos", "pos_bias_v"), adapted=2,
        attention="encoder.encoders.1.self_attn", paddings=("none", "right"), pretrained=False,
        attentions=None, without=("pickle",),
    ),
]  # fmt: skip
