"""Models of torchvision: windows of images and of videos."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case, pixels
from .swin import draw_cosine

SIZES = {
    "embed_dim": 16, "depths": [2], "num_heads": [2], "mlp_ratio": 2.0, "stochastic_depth_prob": 0.0
}  # fmt: skip


class Features(nn.Module):
    """Layers of a model, with a name for what they give."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.layers(pixel_values))


def swin(version=""):
    models = import_apart("torchvision.models.swin_transformer")
    model = models.SwinTransformer(
        patch_size=[1, 1], window_size=[3, 3], num_classes=1, **SIZES,
        block=getattr(models, f"SwinTransformerBlock{version}"),
    )  # fmt: skip
    return Features(*model.features)


def video():
    models = import_apart("torchvision.models.video.swin_transformer")
    model = models.SwinTransformer3d(
        patch_size=[1, 1, 1], window_size=[2, 3, 3], num_classes=1, **SIZES
    )
    return Features(model.patch_embed, *model.features)


def maxvit(side):
    model = import_apart("torchvision.models.maxvit").MaxVit(
        input_size=(4 * side, 4 * side), stem_channels=8, partition_size=3, block_channels=[16],
        block_layers=[2], head_dim=8, expansion_ratio=2, stochastic_depth_prob=0.0,
    )  # fmt: skip
    return Features(model.stem, *model.blocks)


class Tokens(nn.Module):
    """All tokens of a video, of any size; torchvision gives what it makes of the first one."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        maps = self.model.conv_proj(pixel_values)
        x, shape = self.model.pos_encoding(maps.flatten(2).mT), tuple(maps.shape[2:])
        for block in self.model.blocks:
            x, shape = block(x, shape)
        return SimpleNamespace(last_hidden_state=x)


def mvit(stride, **settings):
    """Of three blocks: the second pools queries, the third has as many of them as keys."""
    models = import_apart("torchvision.models.video.mvit")
    pool, none = [3, 3, 3], []
    blocks = [
        models.MSBlockConfig(1, 8, 16, none, pool, none, [1, stride, stride]),
        models.MSBlockConfig(2, 16, 16, pool, pool, [1, 2, 2], [1, 1, 1]),
        models.MSBlockConfig(2, 16, 16, none, none, none, none),
    ]
    model = models.MViT(
        (12, 12), 3, blocks, residual_pool=True, rel_pos_embed=True, proj_after_attn=True,
        patch_embed_kernel=(1, 1, 1), patch_embed_stride=(1, 1, 1), patch_embed_padding=(0, 0, 0),
        **settings,
    )  # fmt: skip
    return Tokens(model)


def images(batch, length, padding):
    return {"pixel_values": pixels(batch, length)}


def videos(batch, length, padding):
    """Of three frames, one more than a window has."""
    return {"pixel_values": pixels(batch, length // 3)[:, :, None].repeat(1, 1, 3, 1, 1)}


def grids(batch, length, padding):
    """Of `length` patches of 4 x 4 pixels."""
    side = round(4 * length**0.5)
    return {"pixel_values": torch.randn(batch, 3, side, side)}


def drop(module, probability):
    module.attention_dropout = probability


def case(name, build, positions, attention, inputs=images, **settings):
    settings = {
        "lengths": (77, 20), "long": 1640, "adapted": 2, "dropout": drop, "local": True, **settings
    }  # fmt: skip
    return Case(
        name, build, inputs, positions=(positions,), attention=attention, paddings=("none",),
        pretrained=False, attentions=None, **settings,
    )  # fmt: skip


TABLE = "relative_position_bias_table"

CASES = [
    case("torchvision swin", swin, TABLE, "layers.1.1.attn"),
    case(
        "torchvision swin v2", partial(swin, "V2"), "cpb_mlp", "layers.1.1.attn",
        draw=draw_cosine, without=("fp16",),
        cancelling=("qkv.weight", "qkv.bias", "logit_scale"),
    ),
    case(
        "torchvision video swin", video, TABLE, "layers.1.1.attn", videos, lengths=(231, 180),
        long=1620,
    ),
    case(
        "torchvision mvit", partial(mvit, 2, residual_with_cls_embed=False), "rel_pos",
        "model.blocks.0.attn", videos, lengths=(231, 192), long=1620, adapted=3, dropout=None,
        build_long=partial(mvit, 1, residual_with_cls_embed=True), local=False,
        linears=("qkv", "project.0"),
    ),
    case(
        "torchvision maxvit", partial(maxvit, 6), TABLE,
        "layers.1.layers.1.layers.grid_attention.attn_layer.1", grids, lengths=(36,), long=1764,
        build_long=partial(maxvit, 42), adapted=4, dropout=None,
    ),
]  # fmt: skip
