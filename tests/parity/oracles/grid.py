"""Tables per axis of an image elsewhere: two signs, scaled and not, resized or made to measure."""

from __future__ import annotations

from math import prod

import torch
from bottleneck_transformer_pytorch.bottleneck_transformer_pytorch import (
    Attention,
    BottleBlock,
    RelPosEmb,
)
from torch import Tensor, nn
from torch.func import functional_call
from transformers import SamVisionConfig, VitDetConfig
from transformers.models.sam.modeling_sam import SamVisionSdpaAttention
from transformers.models.vitdet.modeling_vitdet import (
    VitDetAttention,
    add_decomposed_relative_positions,
)

from relpos.adapters import RelPosEmb2D
from relpos.layers import BottleneckBlock
from relpos.positions import Grid
from tests.parity.comparison import Comparison, Trial, attended, randomized
from tests.parity.oracles.inputs import HEADS, MODEL, WIDTH, hidden

Shape = tuple[int, int]


def image(shape: Shape) -> Tensor:
    """A leaf `(b, height, width, e)`."""
    return hidden(prod(shape)).detach().unflatten(1, shape).requires_grad_()


def like_sam(theirs: nn.Module, own: Shape, x: Tensor, shape: Shape) -> Tensor:
    """A layer of SAM or ViTDet with relpos inside; its tables count query minus key."""
    q, k, v = theirs.qkv(x).flatten(1, 2).unflatten(2, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
    scheme = Grid(WIDTH, own, scaled=False, dtype=torch.float64)
    tables = {"keys.0": theirs.rel_pos_h.flip(0)[None], "keys.1": theirs.rel_pos_w.flip(0)[None]}
    out = attended(scheme, tables, q, k, v, shape=shape)
    return theirs.proj(out.transpose(1, 2).flatten(2).unflatten(1, shape))


def trial(theirs: nn.Module, ours: Tensor, output: Tensor, x: Tensor, tables: str) -> Trial:
    named = dict(theirs.named_parameters())
    return Trial(ours, output, {"x": x, **named}, [name for name in named if tables in name])


def run_sam(shape: Shape, window: int = 0) -> Trial:
    """Its own maps are square, of 5 x 5 or of a window; others resize the tables."""
    config = SamVisionConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, image_size=80, patch_size=16
    )
    theirs = randomized(SamVisionSdpaAttention(config, window))
    x, side = image(shape), window or 5
    return trial(theirs, like_sam(theirs, (side, side), x, shape), theirs(x)[0], x, "rel_pos")


def run_vitdet(shape: Shape, own: Shape = (5, 7)) -> Trial:
    config = VitDetConfig(
        hidden_size=MODEL, num_attention_heads=HEADS, use_relative_position_embeddings=True
    )
    theirs = randomized(VitDetAttention(config, input_size=own))
    x = image(shape)
    return trial(theirs, like_sam(theirs, own, x, shape), theirs(x)[0], x, "rel_pos")


def run_pooled(queries: Shape, keys: Shape) -> Trial:
    """Grids of two sizes, one a multiple of the other along each axis, as where MViTv2 pools."""
    sizes = [max(pair) for pair in zip(queries, keys, strict=True)]
    draw = [hidden(2 * size - 1, width=WIDTH, batch=1, seed=size) for size in sizes]
    lengths = (prod(queries), prod(keys), prod(keys))
    q, k, v = (
        hidden(length, width=WIDTH, batch=2 * HEADS, seed=seed)
        for seed, length in enumerate(lengths)
    )
    scores = add_decomposed_relative_positions(
        q @ k.mT * WIDTH**-0.5, q, draw[0][0], draw[1][0], queries, keys
    )
    tables = {f"keys.{axis}": from_their_center(rows, keys[axis]) for axis, rows in enumerate(draw)}
    scheme = Grid(WIDTH, keys, query_shape=queries, scaled=False, dtype=torch.float64)
    heads = (each.unflatten(0, (2, HEADS)) for each in (q, k, v))
    return Trial(
        ours=attended(scheme, tables, *heads).flatten(0, 1),
        theirs=scores.softmax(-1) @ v,
        leaves={"q": q, "k": k, "v": v, "rel_pos_h": draw[0], "rel_pos_w": draw[1]},
        tables=["rel_pos_h", "rel_pos_w"],
    )


def from_their_center(rows: Tensor, keys: int) -> Tensor:
    """Their rows read backwards, with offset 0 in the middle.

    It is in the row of the last key's coordinate, which is not the middle where keys are coarser.
    """
    finer = rows.shape[1] // 2 + 1
    used = finer + (keys - 1) * (finer // keys)
    return nn.functional.pad(rows[:, :used].flip(1), (0, 0, 0, rows.shape[1] - used))


def run_bottleneck(shape: Shape) -> Trial:
    theirs = randomized(
        Attention(dim=MODEL, fmap_size=shape, heads=HEADS, dim_head=WIDTH, rel_pos_emb=True)
    )
    x = image(shape)
    channels = x.permute(0, 3, 1, 2)
    q, k, v = (
        part.flatten(2).unflatten(1, (HEADS, WIDTH)).mT
        for part in theirs.to_qkv(channels).chunk(3, dim=1)
    )
    rows = theirs.pos_emb
    tables = {"keys.0": rows.rel_height[None], "keys.1": rows.rel_width[None]}
    ours = attended(Grid(WIDTH, shape, dtype=torch.float64), tables, q, k, v)
    return trial(
        theirs, ours.mT.flatten(1, 2).unflatten(2, shape), theirs(channels), x, "pos_emb"
    )  # fmt: skip


def run_block(shape: Shape, downsample: bool, channels: int = MODEL) -> Trial:
    """The whole residual block, in training: batch norms take their means from the batch."""
    sizes = {"dim_out": channels, "proj_factor": 2, "downsample": downsample, "heads": HEADS}
    theirs = BottleBlock(
        dim=MODEL, fmap_size=shape, dim_head=WIDTH, rel_pos_emb=True, **sizes
    )  # fmt: skip
    theirs = randomized(theirs).train()
    # Sharp attention: a batch norm divides by how much tokens differ, and multiplies roundings.
    with torch.no_grad():
        theirs.net[3].to_qkv.weight.mul_(3)
    block = BottleneckBlock(MODEL, shape, dim_head=WIDTH, **sizes).double().train()
    names = {
        "shortcut.": "shortcut.", "net.0.": "contract.0.", "net.1.": "contract.1.",
        "net.3.to_qkv.": "attention.in_proj.", "net.5.": "attention_norm.",
        "net.7.": "expand.0.", "net.8.": "expand.1.",
        "net.3.pos_emb.rel_height": "attention.position.keys.0",
        "net.3.pos_emb.rel_width": "attention.position.keys.1",
    }  # fmt: skip
    state = dict(block.named_buffers())
    for name, numbers in theirs.named_parameters():
        start = next(start for start in names if name.startswith(start))
        ours = names[start] + name.removeprefix(start)
        if "pos_emb" in name:
            state[ours] = numbers[None]
        else:
            state[ours] = numbers.flatten(1) if "to_qkv" in name else numbers
    x = image(shape)
    maps = x.permute(0, 3, 1, 2)
    output = functional_call(block, state, (maps,), strict=True)
    return trial(theirs, output, theirs(maps), x, "pos_emb")


def run_logits(shape: Shape) -> Trial:
    """What relpos's class for AI Summer's weights gives where their own is wrong."""
    theirs = randomized(RelPosEmb(shape, WIDTH))
    q = hidden(prod(shape), width=WIDTH, batch=2 * HEADS)
    heads = q.unflatten(0, (2, HEADS))
    tables = {"emb_h.rel_pos_emb": theirs.rel_height, "emb_w.rel_pos_emb": theirs.rel_width}
    scheme = RelPosEmb2D(shape, WIDTH, dtype=torch.float64)
    ours = functional_call(scheme, tables, (heads,), strict=True)
    return trial(theirs, ours, theirs(heads), q, "rel_")


UNSCALED = "S q_i . k_j + q_i . (H[y_i - y_j] + W[x_i - x_j])"
COMPARISONS = [
    Comparison(
        "Grid", "Attention", "bottleneck-transformer-pytorch",
        "S q_i . (k_j + H[y_j - y_i] + W[x_j - x_i])", run_bottleneck,
        cases=({"shape": (1, 1)}, {"shape": (7, 5)}, {"shape": (5, 7)}), remark="maps of 5 x 7",
    ),
    Comparison(
        "Grid", "BottleBlock", "bottleneck-transformer-pytorch",
        "S q_i . (k_j + H[y_j - y_i] + W[x_j - x_i])", run_block,
        cases=(
            {"shape": (1, 5), "downsample": False},
            {"shape": (5, 7), "downsample": False, "channels": 2 * MODEL},
            {"shape": (4, 6), "downsample": True},
            {"shape": (6, 4), "downsample": True, "channels": 2 * MODEL},
        ),
        remark="a whole residual block in training, strides 1 and 2",
    ),
    Comparison(
        "RelPosEmb2D", "RelPosEmb", "bottleneck-transformer-pytorch",
        "q_i . (H[y_j - y_i] + W[x_j - x_i])", run_logits,
        cases=({"shape": (1, 1)}, {"shape": (7, 5)}, {"shape": (5, 7)}),
        remark="the logits alone, maps of 5 x 7",
    ),
    Comparison(
        "Grid", "SamVisionSdpaAttention", "transformers", UNSCALED, run_sam,
        cases=({"shape": (5, 5)}, {"shape": (5, 7)}, {"shape": (3, 9)}),
        remark="tables of 5 x 5, resized for 5 x 7",
    ),
    Comparison(
        "Grid", "SamVisionSdpaAttention", "transformers", UNSCALED, run_sam,
        cases=({"shape": (1, 1), "window": 1}, {"shape": (7, 7), "window": 7}),
        remark="windows",
    ),
    Comparison(
        "Grid", "VitDetAttention", "transformers", UNSCALED, run_vitdet,
        cases=({"shape": (5, 7)}, {"shape": (9, 4)}, {"shape": (3, 11)}),
        remark="tables of 5 x 7, resized for 9 x 4",
    ),
    Comparison(
        "Grid", "add_decomposed_relative_positions", "transformers",
        UNSCALED, run_pooled,
        cases=(
            {"queries": (2, 3), "keys": (6, 9)},
            {"queries": (6, 9), "keys": (2, 3)},
            {"queries": (6, 3), "keys": (2, 9)},
        ),
        remark="pooled queries or keys, in steps of the finer grid",
    ),
]  # fmt: skip
