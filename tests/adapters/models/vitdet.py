"""ViTDet: windows, then the whole image, of any size."""

from transformers import VitDetConfig, VitDetModel

from .case import Case, pixels

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2,
    "image_size": 9, "pretrain_image_size": 4, "patch_size": 1, "window_size": 5,
    "window_block_indices": [0], "use_relative_position_embeddings": True,
}  # fmt: skip


def inputs(batch, length, padding):
    return {"pixel_values": pixels(batch, length)}


CASES = [
    Case(
        "vitdet",
        lambda: VitDetModel(VitDetConfig(**SIZES)),
        inputs,
        positions=("rel_pos_h", "rel_pos_w"),
        adapted=2,
        attention="encoder.layer.1.attention",
        lengths=(77, 6, 81),
        paddings=("none",),
        long=1640,
        linears=("qkv", "proj"),
    ),
]
