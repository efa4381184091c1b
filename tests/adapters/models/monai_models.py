"""MONAI's Swin in windows of images and volumes, and its blocks with positions of an image."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case, pixels


class Stage(nn.Module):
    """A stage of two layers, the second with a shift, on maps of pixels."""

    def __init__(self, axes):
        super().__init__()
        self.embed = (nn.Conv2d if axes == 2 else nn.Conv3d)(3, 16, 1)
        self.stage = import_apart("monai.networks.nets.swin_unetr").BasicLayer(
            16, 2, 2, window_size=(2, 3, 3)[3 - axes :], drop_path=[0.0, 0.0], mlp_ratio=2.0,
            qkv_bias=True,
        )  # fmt: skip

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.stage(self.embed(pixel_values)))


class Blocks(nn.Module):
    """Two blocks, one with a projection of queries, keys and values each; or with a context."""

    def __init__(self, side, *, context=False):
        super().__init__()
        settings = {"rel_pos_embedding": "decomposed", "input_size": (side, side)}
        self.context = context
        if context:
            block = import_apart("monai.networks.blocks.crossattention").CrossAttentionBlock
            self.blocks = nn.ModuleList(block(16, 2, **settings) for _ in range(2))
            return
        block = import_apart("monai.networks.blocks.selfattention").SABlock
        self.blocks = nn.ModuleList(
            block(16, 2, use_combined_linear=together, **settings) for together in (True, False)
        )

    def forward(self, pixel_values):
        x = pixel_values.flatten(2).mT
        for block in self.blocks:
            normed = nn.functional.layer_norm(x, x.shape[-1:])
            x = x + (block(normed, x.flip(1)) if self.context else block(normed))
        return SimpleNamespace(last_hidden_state=x)


def volumes(batch, length, padding):
    """Of three layers, one more than a window has."""
    return {"pixel_values": pixels(batch, length // 3)[:, :, None].repeat(1, 1, 3, 1, 1)}


def images(batch, length, padding):
    return {"pixel_values": pixels(batch, length)}


def squares(batch, length, padding):
    side = round(length**0.5)
    return {"pixel_values": torch.randn(batch, 16, side, side)}


def case(name, build, inputs, positions, attention, dropout, **settings):
    def drop(module, probability):
        getattr(module, dropout).p = probability

    return Case(
        name, build, inputs, positions=(positions,), adapted=2, attention=attention, dropout=drop,
        paddings=("none",), pretrained=False, attentions=None, **settings,
    )  # fmt: skip


TABLE = "relative_position_bias_table"

CASES = [
    case(
        "monai swin", partial(Stage, 3), volumes, TABLE, "stage.blocks.1.attn", "attn_drop",
        lengths=(231,), long=1620, local=True, linears=("qkv", "proj"),
    ),
    case(
        "monai swin of images", partial(Stage, 2), images, TABLE, "stage.blocks.1.attn",
        "attn_drop", lengths=(77,), long=1640, local=True, first=False,
    ),
    case(
        "monai blocks", partial(Blocks, 9), squares, "rel_pos_arr", "blocks.1", "drop_weights",
        lengths=(81,), long=1600, build_long=partial(Blocks, 40), linears=("out_proj",),
    ),
    case(
        "monai blocks with a context", partial(Blocks, 9, context=True), squares, "rel_pos_arr",
        "blocks.1", "drop_weights", lengths=(81,), long=1600,
        build_long=partial(Blocks, 40, context=True), linears=("to_q", "out_proj"), first=False,
    ),
]  # fmt: skip
