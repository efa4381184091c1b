"""Models of images of other libraries, at the sizes of published ones."""

from __future__ import annotations

from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn

from tests.apart import import_apart

from .model import AdaptedModel

__all__ = ["MODELS"]


def _image(patch: int) -> Any:
    """The argument of a square image, whose patches have so many pixels a side."""

    def inputs(length: int) -> dict[str, Any]:
        side = patch * round(length**0.5)
        generator = torch.Generator().manual_seed(1)
        return {"x": torch.randn(1, 3, side, side, generator=generator)}

    return inputs


# Of the base size, for 384 x 384 pixels: windows of 12 x 12 and 24 x 24 of 96 x 96 patches.
def _swin(layers: int) -> nn.Module:
    return import_apart("timm.models.swin_transformer").SwinTransformer(
        img_size=384, window_size=12, embed_dim=128, depths=(layers,), num_heads=(4,)
    )


def _swin_v2(layers: int) -> nn.Module:
    return import_apart("timm.models.swin_transformer_v2").SwinTransformerV2(
        img_size=384, window_size=24, embed_dim=128, depths=(layers,), num_heads=(4,)
    )


# The large one for 512 x 512 pixels.
def _beit(layers: int) -> nn.Module:
    return import_apart("timm.models.beit").Beit(
        img_size=512, embed_dim=1024, depth=layers, num_heads=16, use_abs_pos_emb=False,
        use_rel_pos_bias=True, init_values=1e-5,
    )  # fmt: skip


def _sam(layers: int) -> nn.Module:
    return import_apart("timm.models.vision_transformer_sam").VisionTransformerSAM(
        depth=layers, use_rel_pos=True, global_attn_indexes=(layers - 1,), num_classes=0
    )


# Of the tiny size: windows of 8 x 8 of 64 x 64 patches.
def _torchvision_swin_v2(layers: int) -> nn.Module:
    models = import_apart("torchvision.models.swin_transformer")
    return models.SwinTransformer(
        patch_size=[4, 4], window_size=[8, 8], embed_dim=96, depths=[layers], num_heads=[3],
        block=models.SwinTransformerBlockV2, downsample_layer=models.PatchMergingV2,
    )  # fmt: skip


# Of the base size.
def _mvitv2(layers: int) -> nn.Module:
    models = import_apart("timm.models.mvitv2")
    config = models.MultiScaleVitCfg(depths=(layers,), embed_dim=96, stride_q=((1, 1),))
    return models.MultiScaleVit(config)


# The small one, of videos of 16 frames: its first two layers have 8 x 8 and 4 x 4 times as many
# queries as keys, and the second has 2 x 2 times fewer queries than the first.
def _mvitv2_video(layers: int) -> nn.Module:
    models = import_apart("torchvision.models.video.mvit")
    pool = [3, 3, 3]
    blocks = [
        models.MSBlockConfig(1, 96, 96, pool, pool, [1, 1, 1], [1, 8, 8]),
        models.MSBlockConfig(2, 96, 192, pool, pool, [1, 2, 2], [1, 4, 4]),
    ]
    return models.MViT(
        (224, 224), 16, blocks[:layers], residual_pool=True, residual_with_cls_embed=False,
        rel_pos_embed=True, proj_after_attn=True,
    )  # fmt: skip


def _video(length: int) -> dict[str, Any]:
    """Of 16 frames, of which two by 4 x 4 pixels make a token."""
    side = 4 * round((length / 8) ** 0.5)
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(1, 3, 16, side, side, generator=generator)}


def _volume(length: int) -> dict[str, Any]:
    """A cube of so many tokens, as the first stage has them."""
    side = round(length ** (1 / 3))
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(1, 48, side, side, side, generator=generator)}


# The first stage for 96 x 96 x 96 voxels, of which two a side make a token.
def _swin_unetr(layers: int) -> nn.Module:
    stage = import_apart("monai.networks.nets.swin_unetr").BasicLayer
    return stage(48, layers, 3, window_size=(7, 7, 7), drop_path=[0.0] * layers, qkv_bias=True)


class _Restored(nn.Module):
    """A model of spandrel that doubles an image, of whose pixels each is a token."""

    def __init__(self, name: str, layers: int, window: int) -> None:
        super().__init__()
        module = import_apart(f"spandrel.architectures.{name}.__arch.{name}")
        with catch_warnings():
            simplefilter("ignore")  # of meshgrid, whose order it does not say
            self.model = getattr(module, name)(
                embed_dim=180, depths=(layers,), num_heads=(6,), window_size=window, mlp_ratio=2,
                upscale=2, upsampler="pixelshuffle",
            )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def _hat(layers: int) -> nn.Module:
    return _Restored("HAT", layers, 16)


def _swinir(layers: int) -> nn.Module:
    return _Restored("SwinIR", layers, 8)


MODELS = (
    AdaptedModel(
        "timm_swin", "timm: Swin B, windows of 12 x 12", _swin, _image(4), "patches of an image",
        (9216,), (9216,), "layers.0.blocks.1", "attn", {},
    ),
    AdaptedModel(
        "timm_swin_v2", "timm: Swin v2 B, windows of 24 x 24", _swin_v2, _image(4),
        "patches of an image", (9216,), (9216,), "layers.0.blocks.1", "attn", {},
    ),
    AdaptedModel(
        "timm_beit", "timm: BEiT L", _beit, _image(16), "patches of an image",
        (1024,), (1024,), "blocks.1", "attn", {},
    ),
    AdaptedModel(
        "timm_sam", "timm: SAM B, global layer", _sam, _image(16), "patches of an image",
        (4096,), (4096,), "blocks.1", "attn", {},
    ),
    AdaptedModel(
        "torchvision_swin", "torchvision: Swin v2 T, windows of 8 x 8", _torchvision_swin_v2,
        _image(4), "patches of an image", (4096,), (4096,), "features.1.1", "attn", {},
    ),
    AdaptedModel(
        "timm_mvitv2", "timm: MViTv2 B, first stage", _mvitv2, _image(4), "patches of an image",
        (3136,), (3136,), "stages.0.blocks.1", "attn", {},
    ),
    AdaptedModel(
        "torchvision_mvit", "torchvision: MViTv2 S, second layer", _mvitv2_video, _video,
        "tokens of a video", (25088,), (25088,), "blocks.1", "attn", {},
    ),
    AdaptedModel(
        "spandrel_swinir", "spandrel: SwinIR, windows of 8 x 8", _swinir, _image(1),
        "pixels of an image", (4096,), (16384,), "model.layers.0.residual_group.blocks.1", "attn",
        {},
    ),
    AdaptedModel(
        "spandrel_hat", "spandrel: HAT, windows of 16 x 16", _hat, _image(1), "pixels of an image",
        (4096,), (16384,), "model.layers.0.residual_group.blocks.1", "attn", {},
    ),
    AdaptedModel(
        "monai_swin", "MONAI: Swin UNETR, windows of 7 x 7 x 7", _swin_unetr, _volume,
        "tokens of a volume", (110592,), (110592,), "blocks.1", "attn", {},
    ),
)  # fmt: skip
