"""SegGPT: an example and its mask above the image, which is not square."""

from functools import partial

import torch
from transformers import SegGptConfig, SegGptForImageSegmentation

from .case import Case

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "mlp_dim": 24,
    "patch_size": 1, "pretrain_image_size": 4, "drop_path_rate": 0.0, "decoder_hidden_size": 4,
    "merge_index": 0, "intermediate_hidden_state_indices": [1, 2],
}  # fmt: skip


def inputs(batch, length, padding):
    """`length` tokens, those of the example among them."""
    width = {84: 7, 1680: 40}[length]
    shape = (batch, 3, length // width // 2, width)
    names = ("pixel_values", "prompt_pixel_values", "prompt_masks", "labels")
    hidden = torch.arange(length)[None] >= length // 2
    return {name: torch.randn(shape) for name in names} | {"bool_masked_pos": hidden}


def build(height, width):
    return SegGptForImageSegmentation(SegGptConfig(**SIZES, image_size=(height, width)))


CASES = [
    Case(
        "seggpt",
        partial(build, 12, 7),
        inputs,
        positions=("rel_pos_h", "rel_pos_w"),
        adapted=3,
        attention="model.encoder.layers.1.attention",
        output="pred_masks",
        lengths=(84,),
        paddings=("none",),
        long=1680,
        build_long=partial(build, 42, 40),
        linears=("qkv", "proj"),
    ),
]
