"""The block of Bottleneck Transformers: a residual bottleneck that attends where others convolve.

    y = act(shortcut(x) + expand(pool(attention(contract(x)))))    Srinivas et al. 2021, figure 1

- `contract` and `expand` are 1 x 1 convolutions with batch norms; between them stands
  `GridAttention` with relative positions (figure 4) in place of ResNet's 3 x 3 convolution. It has
  no projection of its own, since `expand` follows.
- A stride is an average pool behind the attention, as in the paper, so the attention works on the
  map as it comes in, and `feat_map_size` is that map's.
- Where channels or sides change, `shortcut` is a convolution (3 x 3 with a stride, else 1 x 1) with
  batch norm and activation.
- The last batch norm starts at 0: the block starts as its shortcut.
- Elsewhere: the package `bottleneck-transformer-pytorch` has these arguments, with `fmap_size` for
  `feat_map_size` (AI Summer's word) and `rel_pos_emb=True` for what there is here always. Its maps
  must have the size they were made for, and sides that the stride divides: its pool rounds down
  where its shortcut rounds up. Here both round up, and a map of another size gets resized rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_floating, check_sizes
from ..ops.locality import Window
from ..positions import Grid
from .grid import GridAttention

__all__ = ["BottleneckBlock"]


class BottleneckBlock(nn.Module):
    """`act(shortcut(x) + expand(pool(attention(contract(x)))))` on maps `(b, dim, height, width)`.

    Args:
        dim: channels of the input.
        feat_map_size: height and width of the input, or one number for both; other sizes get
            resized rows. `fmap_size` in `bottleneck-transformer-pytorch`.
        dim_out: channels of the output.
        proj_factor: how many times narrower the attention's input is than the output.
        downsample: whether the output is smaller than the input, by `stride`.
        stride: by how much; sides that it does not divide are rounded up.
        heads: heads of the attention.
        dim_head: width of one head.
        position: the attention's scheme; None means `Grid(dim_head, feat_map_size)`, the paper's.
        activation: after each norm and at the end; None means a ReLU.
        window: of the attention, for each axis of the input's map, as in `GridAttention`.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1, or `proj_factor` does not divide `dim_out`.

    >>> block = BottleneckBlock(64, (7, 9), dim_out=128, downsample=True, dim_head=16)
    >>> block(torch.zeros(2, 64, 7, 9)).shape
    torch.Size([2, 128, 4, 5])
    """

    def __init__(
        self,
        dim: int,
        feat_map_size: int | tuple[int, int],
        *,
        dim_out: int = 2048,
        proj_factor: int = 4,
        downsample: bool = False,
        stride: int = 2,
        heads: int = 4,
        dim_head: int = 128,
        position: nn.Module | None = None,
        activation: nn.Module | None = None,
        window: Sequence[Window | None] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = "BottleneckBlock"
        self.dim = check_count(name, "dim", dim)
        dim_out = check_count(name, "dim_out", dim_out)
        proj_factor = check_count(name, "proj_factor", proj_factor)
        stride = check_count(name, "stride", stride) if downsample else 1
        heads, dim_head = check_count(name, "heads", heads), check_count(name, "dim_head", dim_head)
        several = isinstance(feat_map_size, tuple | list)
        pair = feat_map_size if several else (feat_map_size, feat_map_size)
        shape = check_sizes(name, "feat_map_size", pair, 2)
        if dim_out % proj_factor:
            raise ValueError(
                f"BottleneckBlock: dim_out must be a multiple of proj_factor={proj_factor}, "
                f"got {dim_out}"
            )
        check_dtype(name, dtype)
        kind = {"device": device, "dtype": dtype}
        narrow, inner = dim_out // proj_factor, heads * dim_head
        if position is None:
            position = Grid(dim_head, shape, **kind)

        self.activation = nn.ReLU() if activation is None else activation
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or dim != dim_out:
            kernel = 3 if stride > 1 else 1
            self.shortcut = nn.Sequential(
                nn.Conv2d(dim, dim_out, kernel, stride, kernel // 2, bias=False, **kind),
                nn.BatchNorm2d(dim_out, **kind),
                self.activation,
            )
        self.contract = nn.Sequential(
            nn.Conv2d(dim, narrow, 1, bias=False, **kind), nn.BatchNorm2d(narrow, **kind)
        )
        self.attention = GridAttention(
            narrow, heads, head_dim=dim_head, position=position, bias=False, projection=False,
            window=window, **kind,
        )  # fmt: skip
        self.pool = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        self.attention_norm = nn.BatchNorm2d(inner, **kind)
        last = nn.BatchNorm2d(dim_out, **kind)
        nn.init.zeros_(last.weight)
        self.expand = nn.Sequential(nn.Conv2d(inner, dim_out, 1, bias=False, **kind), last)

    def forward(self, x: Float[Tensor, "b e m n"]) -> Float[Tensor, "b c s t"]:
        """The next map, smaller by the stride.

        Args:
            x: feature map.

        Raises:
            ShapeError: if `x` is no map of `dim` channels.
        """
        check_floating("BottleneckBlock", "x", x, "b e height width", {"e": self.dim})
        y = self.activation(self.contract(x))
        y = self.activation(self.attention_norm(self.pool(self.attention(y))))
        return self.activation(self.shortcut(x) + self.expand(y))
