"""Conformers that are not in transformers: the `conformer` package's and ESPnet's."""

import contextlib
import io
from types import SimpleNamespace

import torch
from conformer.conformer import ConformerBlock
from torch import nn

from .case import Case, padded

with contextlib.redirect_stdout(io.StringIO()):  # it prints that there is no flash attention
    from espnet.nets.pytorch_backend.conformer.encoder import Encoder

WIDTH = 32


class Blocks(nn.Module):
    """Blocks of the `conformer` package, which has no model that takes a mask."""

    def __init__(self):
        super().__init__()
        sizes = {"dim": WIDTH, "dim_head": 8, "heads": 4, "ff_mult": 1, "conv_kernel_size": 5}
        self.blocks = nn.ModuleList(ConformerBlock(**sizes) for _ in range(2))
        for block in self.blocks:
            # Blocks do not pass this on, and 512 is beyond the lengths of tests.
            block.attn.fn.max_pos_emb = 9
            block.attn.fn.rel_pos_emb = nn.Embedding(19, 8)

    def forward(self, x, mask=None):
        for block in self.blocks:
            x = block(x, mask)
        return SimpleNamespace(last_hidden_state=x)


class Named(nn.Module):
    """ESPnet's encoder, with a name for what it gives."""

    def __init__(self, *, legacy, zero_triu):
        super().__init__()
        form = "legacy_" if legacy else ""
        self.encoder = Encoder(
            16, WIDTH, 4, 48, 2, 0.0, 0.0, 0.0, input_layer="linear", macaron_style=True,
            pos_enc_layer_type=f"{form}rel_pos", selfattention_layer_type=f"{form}rel_selfattn",
            use_cnn_module=True, cnn_module_kernel=5, zero_triu=zero_triu,
        )  # fmt: skip

    def forward(self, x, mask=None):
        mask = None if mask is None else mask[:, None]
        return SimpleNamespace(last_hidden_state=self.encoder(x, mask)[0])


def inputs(width):
    def of(batch, length, padding):
        mask = padded(batch, length, padding)
        found = {"x": torch.randn(batch, length, width)}
        return found if mask is None else found | {"mask": mask.bool()}

    return of


def espnet(name, *, legacy=False, zero_triu=False):
    return Case(
        name,
        lambda: Named(legacy=legacy, zero_triu=zero_triu),
        inputs(16),
        positions=("linear_pos", "pos_bias_v"),
        adapted=2,
        attention="encoder.encoders.1.self_attn",
        pretrained=False,
        attentions=None,
        first=not (legacy or zero_triu),
    )


CASES = [
    Case(
        "conformer",
        Blocks,
        inputs(WIDTH),
        positions=("rel_pos_emb",),
        adapted=2,
        attention="blocks.1.attn.fn",
        long=2048,
        pretrained=False,
        attentions=None,
    ),
    espnet("espnet"),
    espnet("espnet with zero_triu", zero_triu=True),
    espnet("espnet legacy", legacy=True),
    espnet("espnet legacy with zero_triu", legacy=True, zero_triu=True),
]
