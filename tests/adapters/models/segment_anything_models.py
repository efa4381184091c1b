"""SAM's encoder of images as its authors published it, and the copies of others."""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from tests.apart import import_apart

from .case import Case


class Images(nn.Module):
    """The encoder, with a name for what it gives."""

    def __init__(self, module, side):
        super().__init__()
        self.encoder = import_apart(module).ImageEncoderViT(
            img_size=side, patch_size=1, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2,
            out_chans=8, use_rel_pos=True, window_size=4, global_attn_indexes=(1,),
        )  # fmt: skip

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.encoder(pixel_values))


def inputs(batch, length, padding):
    side = round(length**0.5)
    return {"pixel_values": torch.randn(batch, 3, side, side)}


def case(name, module, **options):
    return Case(
        name, partial(Images, module, 9), inputs, positions=("rel_pos_h", "rel_pos_w"),
        adapted=2, attention="encoder.blocks.1.attn", lengths=(81,), paddings=("none",),
        long=1600, build_long=partial(Images, module, 40), pretrained=False, attentions=None,
        linears=("qkv", "proj"), **options,
    )  # fmt: skip


CASES = [
    case("segment_anything", "segment_anything.modeling.image_encoder"),
    case("kornia sam", "kornia.models.sam.architecture.image_encoder", first=False),
    case("ultralytics sam", "ultralytics.models.sam.modules.encoders", first=False),
]
