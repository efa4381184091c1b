"""Models of timm: windows and whole images, with biases that are learned or computed."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case
from .swin import draw_cosine

SHAPES = {
    36: (6, 6), 54: (6, 9), 64: (8, 8), 77: (7, 11), 1620: (36, 45), 1640: (40, 41), 2304: (48, 48)
}  # fmt: skip


class Features(nn.Module):
    """A model without head and pooling, with a name for what it gives."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        for name, module in model.named_modules():
            if name.endswith("mlp.drop1"):  # of the networks that compute biases: always 1/8
                module.p = 0.0

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.model(pixel_values))


class Maps(nn.Module):
    """Attentions of timm that are no model."""

    def __init__(self, *attentions):
        super().__init__()
        self.attentions = nn.Sequential(*attentions)

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.attentions(pixel_values))


def images(patch=1, channels=3):
    """Images of `length` patches, with so many pixels a side."""

    def inputs(batch, length, padding):
        height, width = SHAPES[length]
        return {"pixel_values": torch.randn(batch, channels, patch * height, patch * width)}

    return inputs


def drop(module, probability):
    module.attn_drop.p = probability


def swin(length, file, name, **settings):
    cls = getattr(import_apart(f"timm.models.{file}"), name)
    model = cls(
        img_size=SHAPES[length], patch_size=1, embed_dim=16, depths=(2,), num_heads=(2,),
        window_size=3, mlp_ratio=2, num_classes=0, global_pool="", drop_path_rate=0.0, **settings,
    )  # fmt: skip
    return Features(model)


def vision_transformer(length, file, name, **settings):
    cls = getattr(import_apart(f"timm.models.{file}"), name)
    model = cls(
        img_size=SHAPES[length], patch_size=1, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2,
        num_classes=0, global_pool="", init_values=1.0, **settings,
    )  # fmt: skip
    return Features(model)


def sam(length):
    return vision_transformer(
        length, "vision_transformer_sam", "VisionTransformerSAM", use_rel_pos=True, window_size=4,
        global_attn_indexes=(1,), neck_chans=8, qk_norm=True,
    )  # fmt: skip


def maxxvit(length, kind, positions, patch, **settings):
    maxxvit = import_apart("timm.models.maxxvit")
    transformer = maxxvit.MaxxVitTransformerCfg(
        dim_head=8, rel_pos_type=positions, rel_pos_dim=16, expand_ratio=2.0, **settings
    )
    config = maxxvit.MaxxVitCfg(
        embed_dim=(16,),
        depths=(2,),
        block_type=(kind,),
        stem_width=8,
        conv_cfg=maxxvit.MaxxVitConvCfg(expand_ratio=2.0),
        transformer_cfg=transformer,
    )
    size = tuple(patch * side for side in SHAPES[length])
    return Features(maxxvit.MaxxVit(config, img_size=size, num_classes=0, global_pool=""))


def gcvit(length):
    size = tuple(4 * side for side in SHAPES[length])
    cls = import_apart("timm.models.gcvit").GlobalContextVit
    model = cls(
        img_size=size,
        window_size=(3,),
        embed_dim=16,
        depths=(2,),
        num_heads=(2,),
        num_classes=0,
        global_pool="",
    )
    return Features(model)


def mvitv2(length, stride=2, **settings):
    """Of two stages: the second has fewer queries than keys."""
    models = import_apart("timm.models.mvitv2")
    config = models.MultiScaleVitCfg(
        depths=(1, 1), embed_dim=(8, 16), num_heads=(1, 2), mlp_ratio=2,
        stride_q=((1, 1), (2, 2)), stride_kv=((stride, stride), (1, 1)),
        patch_kernel=(1, 1), patch_stride=(1, 1), patch_padding=(0, 0), **settings,
    )  # fmt: skip
    side = max(SHAPES[length])
    return Features(models.MultiScaleVit(config, (side, side), num_classes=0, global_pool=""))


def bottleneck(length):
    cls = import_apart("timm.layers.bottleneck_attn").BottleneckAttn
    size = {"feat_size": SHAPES[length], "num_heads": 2, "qkv_bias": True}
    return Maps(cls(8, 16, **size), cls(16, 16, dim_head=4, scale_pos_embed=True, **size))


def case(name, build, positions, attention, **settings):
    """Of an image of 77 patches, at 1640 if it has no others."""
    settings = {
        "inputs": images(), "adapted": 2, "lengths": (77,), "long": 1640, "dropout": drop,
        "attentions": None, "linears": ("qkv", "proj"), **settings,
    }  # fmt: skip
    return Case(
        name, partial(build, settings["lengths"][0]), positions=positions, attention=attention,
        paddings=("none",), pretrained=False, build_long=partial(build, settings["long"]),
        **settings,
    )  # fmt: skip


SECOND = "model.layers.0.blocks.1.attn"
TABLE = ("relative_position_bias_table",)
COSINE = {"cancelling": ("qkv.weight", "qkv.bias", "logit_scale", "q_bias"), "draw": draw_cosine}

CASES = [
    case(
        "timm swin", lambda n: swin(n, "swin_transformer", "SwinTransformer"), TABLE, SECOND,
        local=True,
    ),
    case(
        "timm swin v2", lambda n: swin(n, "swin_transformer_v2", "SwinTransformerV2"), ("cpb_mlp",),
        SECOND, local=True, linears=("proj",), without=("fp16",), **COSINE,
    ),
    case(
        "timm swin cr", lambda n: swin(n, "swin_transformer_v2_cr", "SwinTransformerV2Cr"),
        ("meta_mlp",), "model.stages.0.blocks.1.attn", lengths=(54,), long=1620, local=True,
        without=("fp16",), **COSINE,
    ),
    case(
        "timm beit",
        lambda n: vision_transformer(n, "beit", "Beit", use_abs_pos_emb=False, qkv_bias=True,
            use_rel_pos_bias=True),
        TABLE, "model.blocks.1.attn", linears=("proj",),
    ),
    case(
        "timm relpos vit, learned",
        lambda n: vision_transformer(n, "vision_transformer_relpos", "VisionTransformerRelPos",
            rel_pos_type="bias", class_token=True, qk_norm=True),
        TABLE, "model.blocks.1.attn",
    ),
    case(
        "timm relpos vit, computed",
        lambda n: vision_transformer(n, "vision_transformer_relpos", "VisionTransformerRelPos",
            rel_pos_type="mlp_swin", rel_pos_dim=16, class_token=True),
        ("rel_pos.mlp",), "model.blocks.1.attn", first=False,
    ),
    case(
        "timm relpos vit, one bias for all layers",
        lambda n: vision_transformer(n, "vision_transformer_relpos", "VisionTransformerRelPos",
            rel_pos_type="mlp", rel_pos_dim=16, shared_rel_pos=True),
        ("shared_rel_pos",), "model.blocks.1.attn", first=False,
    ),
    case("timm sam", sam, ("rel_pos_h", "rel_pos_w"), "model.blocks.1.attn"),
    case(
        "timm maxvit",
        lambda n: maxxvit(n, "M", "bias_tf", 4, window_size=(3, 3), grid_size=(3, 3)),
        TABLE, "model.stages.0.blocks.1.attn_grid.attn", inputs=images(4), adapted=4, local=True,
        lengths=(54,), long=1620,
    ),
    case(
        "timm coatnet, learned", lambda n: maxxvit(n, "T", "bias", 4), TABLE,
        "model.stages.0.blocks.1.attn", inputs=images(4), first=False,
    ),
    case(
        "timm coatnet, computed", lambda n: maxxvit(n, "T", "mlp", 4, head_first=False),
        ("rel_pos.mlp",), "model.stages.0.blocks.1.attn", inputs=images(4), first=False,
    ),
    case(
        "timm gcvit", gcvit, TABLE, "model.stages.0.blocks.1.attn", inputs=images(4), local=True,
        lengths=(36,), long=2304, first=False,
    ),
    case(
        "timm mvitv2", lambda n: mvitv2(n, stride=1 if n > 1000 else 2), ("rel_pos_h", "rel_pos_w"),
        "model.stages.0.blocks.0.attn", lengths=(77, 64), dropout=None,
    ),
    case(
        "timm mvitv2, class token", lambda n: mvitv2(n, use_cls_token=True),
        ("rel_pos_h", "rel_pos_w"), "model.stages.1.blocks.0.attn", lengths=(77, 64), dropout=None,
        first=False,
    ),
    case(
        "timm bottleneck", bottleneck, ("height_rel", "width_rel"), "attentions.1",
        inputs=images(channels=8), dropout=None, linears=(),
    ),
]  # fmt: skip
