"""Models of spandrel that restore images, of whose layers some shift their windows."""

from functools import partial
from types import SimpleNamespace
from warnings import catch_warnings, simplefilter

from torch import nn

from tests.apart import import_apart

from .case import Case, pixels

SIZES = {"embed_dim": 16, "window_size": 4, "upscale": 1, "img_size": 8, "drop_path_rate": 0.0}


class Images(nn.Module):
    """A model, with a name for what it gives."""

    def __init__(self, name, file, **settings):
        super().__init__()
        module = import_apart(f"spandrel.architectures.{name}.__arch.{file}")
        with catch_warnings():
            simplefilter("ignore")  # of meshgrid, whose order it does not say
            self.model = getattr(module, name)(**SIZES, **settings)

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.model(pixel_values))


def inputs(batch, length, padding):
    return {"pixel_values": pixels(batch, length)}


def case(name, file, attention, *positions, adapted=2, left="", **settings):
    return Case(
        f"spandrel {name}", partial(Images, name, file, **settings), inputs, positions=positions,
        adapted=adapted, attention=f"model.{attention}", lengths=(64, 144), paddings=("none",),
        long=1600, left=left, pretrained=False, attentions=None, linears=("qkv", "proj"),
        first=False,
    )  # fmt: skip


TWO = {"depths": (2,), "num_heads": (2,), "mlp_ratio": 2}
BLOCK = "layers.0.residual_group.blocks.1.attn"
CASES = [
    case("SwinIR", "SwinIR", BLOCK, "relative_position_bias_table", **TWO),
    case("Swin2SR", "Swin2SR", BLOCK, "cpb_mlp", **TWO),
    case(
        "DRCT", "drct_arch", "layers.0.swin2.attn", "relative_position_bias_table", adapted=5,
        depths=(2,), num_heads=(2,), gc=8, upsampler="pixelshuffle",
    ),
    case(
        "HAT", "HAT", BLOCK, "relative_position_bias_table",
        left="its keys reach beyond the window of its queries", squeeze_factor=4, **TWO,
    ),
]  # fmt: skip
