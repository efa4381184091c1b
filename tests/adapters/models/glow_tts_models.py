"""The encoder of text of VITS as Piper has it, and Coqui's."""

from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case, padded

PIPER = "piper.train.vits.attentions"
COQUI = "TTS.tts.layers.glow_tts.transformer"


class Text(nn.Module):
    """The encoder, with tokens before channels."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, attention_mask=None):
        mask = torch.ones(x.shape[:2]) if attention_mask is None else attention_mask
        output = self.encoder(x.mT, mask[:, None].to(x.device, x.dtype))
        return SimpleNamespace(last_hidden_state=output.mT)


def piper():
    return Text(import_apart(PIPER).Encoder(32, 48, n_heads=4, n_layers=2, kernel_size=3))


def coqui():
    transformer = import_apart(COQUI).RelativePositionTransformer
    return Text(transformer(32, 24, 32, 48, 4, 2, kernel_size=3, rel_attn_window_size=4))


def inputs(batch, length, padding):
    mask = padded(batch, length, padding)
    found = {"x": torch.randn(batch, length, 32)}
    return found if mask is None else found | {"attention_mask": mask}


def case(name, build, dropout, **options):
    return Case(
        name, build, inputs, positions=("emb_rel_k", "emb_rel_v"), adapted=2,
        attention="encoder.attn_layers.1", pretrained=False, attentions=None,
        dropout=lambda attention, p: setattr(getattr(attention, dropout), "p", p), **options,
    )  # fmt: skip


CASES = [case("piper", piper, "drop", first=False), case("coqui", coqui, "dropout", first=False)]
