"""Models of MMDetection, MMSegmentation, MMPretrain and MMAction2, of images and of videos."""

from functools import partial
from types import SimpleNamespace
from warnings import catch_warnings, simplefilter

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case
from .swin import draw_cosine

SHAPES = {54: (6, 9), 77: (7, 11), 1620: (36, 45), 1640: (40, 41)}
SMALL = {"drop_path_rate": 0.0}
SWIN = {"window_size": 3, "patch_size": 1, **SMALL}
ARCH = {"embed_dims": 16, "depths": [2], "num_heads": [2]}
VIT = {"embed_dims": 16, "num_layers": 2, "num_heads": 2, "feedforward_channels": 32}
MVIT = {"embed_dims": 8, "num_layers": 2, "num_heads": 1, "downscale_indices": [1]}


class Backbone(nn.Module):
    """A backbone, with a name for its last map or tokens."""

    def __init__(self, module, name, settings, tokens=False):
        super().__init__()
        self.tokens = tokens
        with catch_warnings():
            simplefilter("ignore")  # of meshgrid, whose order they do not say
            self.model = getattr(import_apart(module), name)(**settings)

    def forward(self, pixel_values):
        found = self.model(pixel_values)
        while isinstance(found, (list, tuple)) and not self.tokens:
            found = found[0]
        if self.tokens:
            # Of a video, and its first token.
            maps, token = found[-1]
            found = torch.cat([token[:, None], maps.flatten(2).mT], dim=1)
        return SimpleNamespace(last_hidden_state=found)


def images(batch, length, padding):
    return {"pixel_values": torch.randn(batch, 3, *SHAPES[length])}


def videos(batch, length, padding):
    """Of three frames."""
    return {"pixel_values": torch.randn(batch, 3, 3, *SHAPES[length // 3 if length < 900 else 54])}


def drop(module, probability):
    module.attn_drop.p = probability


def swin(length, library):
    return Backbone(
        f"{library}.models.backbones.swin", "SwinTransformer",
        {"embed_dims": 16, "depths": (2,), "num_heads": (2,), "mlp_ratio": 2, "strides": (1,),
         "out_indices": (0,), **SWIN},
    )  # fmt: skip


def pretrain_swin(length, version, **settings):
    module = f"mmpretrain.models.backbones.swin_transformer{version.lower()}"
    settings = {"arch": ARCH | settings, "img_size": SHAPES[length], "pad_small_map": True, **SWIN}
    return Backbone(module, f"SwinTransformer{version[1:]}", settings | {"out_indices": (0,)})


def beit(length):
    settings = {"num_layers": 2, "num_heads": 2, "embed_dims": 16, "mlp_ratio": 2, **SMALL}
    settings |= {"img_size": SHAPES[length], "patch_size": 1, "init_values": 1.0}
    return Backbone(
        "mmseg.models.backbones.beit", "BEiT",
        settings | {"qv_bias": True, "attn_drop_rate": 0.0, "out_indices": (1,)},
    )  # fmt: skip


def pretrain_vit(length, file, name, **settings):
    settings |= {"img_size": SHAPES[length], "patch_size": 1, "out_type": "raw"}
    arch = VIT | settings.pop("arch", {})
    return Backbone(f"mmpretrain.models.backbones.{file}", name, settings | {"arch": arch})


def mvit(length):
    stride = 1 if length > 1000 else 2
    return Backbone(
        "mmpretrain.models.backbones.mvit", "MViT",
        {"arch": MVIT, "img_size": max(SHAPES[length]), "out_scales": [1], "rel_pos_spatial": True,
         "patch_cfg": {"kernel_size": 1, "stride": 1, "padding": 0}, "adaptive_kv_stride": stride},
    )  # fmt: skip


def video_mvit(length):
    stride = 1 if length > 1000 else 2
    one, none = (1, 1, 1), (0, 0, 0)
    return Backbone(
        "mmaction.models.backbones.mvit", "MViT",
        {"arch": MVIT, "spatial_size": 12, "temporal_size": 3, "out_scales": [1],
         "patch_cfg": {"kernel_size": one, "stride": one, "padding": none},
         "adaptive_kv_stride": (1, stride, stride)},
        tokens=True,
    )  # fmt: skip


def video_swin(length):
    return Backbone(
        "mmaction.models.backbones.swin", "SwinTransformer3D",
        {"arch": ARCH, "patch_size": (1, 1, 1), "window_size": (2, 3, 3), "mlp_ratio": 2,
         "patch_norm": False, "out_indices": (0,), **SMALL},
    )  # fmt: skip


def case(name, build, positions, attention, **settings):
    settings = {
        "inputs": images, "adapted": 2, "lengths": (77,), "long": 1640, "dropout": drop,
        "attentions": None, "linears": ("qkv", "proj"), "first": False, **settings,
    }  # fmt: skip
    return Case(
        name, partial(build, settings["lengths"][0]), positions=positions,
        attention=f"model.{attention}", paddings=("none",), pretrained=False,
        build_long=partial(build, settings["long"]), **settings,
    )  # fmt: skip


TABLE = ("relative_position_bias_table",)
AXES = ("rel_pos_h", "rel_pos_w", "rel_pos_t")
SECOND = "stages.0.blocks.1.attn.w_msa"

CASES = [
    case("mmdet swin", partial(swin, library="mmdet"), TABLE, SECOND, local=True),
    case("mmseg swin", partial(swin, library="mmseg"), TABLE, SECOND, local=True),
    case("mmseg beit", beit, TABLE, "layers.1.attn", linears=("proj",)),
    case(
        "mmpretrain swin", partial(pretrain_swin, version=""), TABLE, SECOND, local=True,
        linears=("qkv",),
    ),
    case(
        "mmpretrain swin v2",
        partial(pretrain_swin, version="_V2", extra_norm_every_n_blocks=0), ("cpb_mlp",), SECOND,
        local=True, linears=("proj",), without=("fp16",), draw=draw_cosine,
        cancelling=("qkv.weight", "qkv.bias", "logit_scale", "q_bias"),
    ),
    case(
        "mmpretrain beit", partial(pretrain_vit, file="beit", name="BEiTViT"), TABLE,
        "layers.1.attn", linears=("proj",), cancelling=("ln1.bias", "ln2.bias"),
    ),
    case(
        "mmpretrain sam",
        partial(
            pretrain_vit, file="vit_sam", name="ViTSAM", arch={"global_attn_indexes": [1]},
            out_channels=0, use_rel_pos=True, window_size=4,
        ),
        AXES, "layers.1.attn", dropout=None,
    ),
    case("mmpretrain mvit", mvit, AXES, "blocks.0.attn", dropout=None),
    case(
        "mmaction mvit", video_mvit, AXES, "blocks.0.attn", dropout=None, inputs=videos,
        lengths=(231,), long=1620,
    ),
    case(
        "mmaction swin", video_swin, TABLE, "layers.0.blocks.1.attn", inputs=videos,
        lengths=(231,), long=1620, local=True,
    ),
]  # fmt: skip
