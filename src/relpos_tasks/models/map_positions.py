"""Position schemes for maps (images, feature maps) by name, as `PixelClassifier` takes them.

A scheme acts on the input, as absolute positions do, or in the attention of every block. Those
made for a sequence (`sequence`, `sequence-rotary`) see the map row by row: their offsets are other
ones on a map of another width.

`grid` and `grid-resized`, `window` and `window-resized`, `absolute` and `absolute-resized` learn
the same tables; on a map of another size the first keep each row's offset or place and repeat the
farthest, the second are resized, as checkpoints of vision models are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relpos.checks import check_count, check_sizes
from relpos.positions import (
    AxialRotary,
    Bidirectional,
    ContinuousBias,
    Grid,
    NoPosition,
    Rotary,
    WindowBias,
    resize_rows,
)
from relpos.positions.sinusoids import sinusoids

__all__ = [
    "MAP_POSITIONS",
    "LearnedMapPositions",
    "MapScheme",
    "MapSizes",
    "SinusoidalMapPositions",
]


@runtime_checkable
class MapSizes(Protocol):
    """What a scheme needs to know of the model."""

    @property
    def width(self) -> int:
        """Channels of the map."""
        ...

    @property
    def heads(self) -> int:
        """Attention heads of a block."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the maps that the model is trained on."""
        ...


class LearnedMapPositions(nn.Module):
    """`x_yx + R_yx`, one learned row for each place of a map (Dosovitskiy et al. 2021, "ViT").

    Args:
        dim: channels of the map.
        shape: height and width of the table.
        resize: whether the table is resized for another map, by cubics over both axes as ViT's is;
            if not, each row keeps its place, and places beyond repeat those at the edge.

    Raises:
        ValueError: if a size is below 1.

    >>> LearnedMapPositions(4, (2, 3))(torch.zeros(1, 4, 5, 3)).shape
    torch.Size([1, 4, 5, 3])
    """

    def __init__(self, dim: int, shape: tuple[int, int], *, resize: bool = False) -> None:
        super().__init__()
        self.dim = check_count("LearnedMapPositions", "dim", dim)
        height, width = check_sizes("LearnedMapPositions", "shape", shape, 2)
        self.resize = resize
        self.rows = nn.Parameter(torch.empty(dim, height, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows from a normal distribution around 0 with variance `1 / dim`."""
        nn.init.normal_(self.rows, std=self.dim**-0.5)

    def forward(self, x: Float[Tensor, "b e m n"]) -> Float[Tensor, "b e m n"]:
        """The map with the row of each place added.

        Args:
            x: map of `dim` channels.
        """
        height, width = x.shape[2:]
        if self.resize:
            return x + resize_rows(self.rows, (height, width), mode="cubic")
        down, across = (
            torch.arange(size, device=x.device).clamp(max=own - 1)
            for size, own in zip((height, width), self.rows.shape[1:], strict=True)
        )
        return x + self.rows[:, down][:, :, across]

    def extra_repr(self) -> str:
        """Channels, table, and whether it is resized."""
        shape = tuple(self.rows.shape[1:])
        return f"dim={self.dim}, shape={shape}" + (", resize=True" if self.resize else "")


class SinusoidalMapPositions(nn.Module):
    """`x_yx + scale * (waves of y, waves of x)`, half the channels each (Carion et al. 2020).

    Args:
        dim: channels of the map.
        scale: 1 fits maps of unit variance.

    Raises:
        ValueError: if `dim` is below 2, or odd.

    >>> SinusoidalMapPositions(4)(torch.zeros(1, 4, 1, 2))[0, :, 0, 1]
    tensor([0.0000, 1.0000, 0.8415, 0.5403])
    """

    def __init__(self, dim: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.dim = check_count("SinusoidalMapPositions", "dim", dim)
        if self.dim % 2:
            raise ValueError(f"SinusoidalMapPositions: dim must be even, got {dim}")
        self.scale = float(scale)

    def forward(self, x: Float[Tensor, "b e m n"]) -> Float[Tensor, "b e m n"]:
        """The map with the waves of each place added.

        Args:
            x: map of `dim` channels.
        """
        height, width = x.shape[2:]
        down, across = (
            sinusoids(torch.arange(size, device=x.device), self.dim // 2).mT
            for size in (height, width)
        )
        rows = torch.cat(
            (down[:, :, None].expand(-1, -1, width), across[:, None].expand(-1, height, -1))
        )
        return x + (self.scale * rows).to(x.dtype)

    def extra_repr(self) -> str:
        """Channels and scale."""
        return f"dim={self.dim}" + ("" if self.scale == 1 else f", scale={self.scale:g}")


@dataclass(frozen=True)
class MapScheme:
    """How a scheme is made, and where it acts.

    Args:
        title: for tables and figures.
        make: the module, from the model's sizes.
        at_input: whether it acts on the input; if not, in the attention of every block.
    """

    title: str
    make: Callable[[MapSizes], nn.Module]
    at_input: bool = False


def _sinusoidal(s: MapSizes) -> nn.Module:
    # The stem's output has a variance of about 1 / width, as learned rows have.
    return SinusoidalMapPositions(s.width, scale=s.width**-0.5)


MAP_POSITIONS: dict[str, MapScheme] = {
    "none": MapScheme("no positions", lambda s: NoPosition()),
    "absolute": MapScheme(
        "absolute, learned", lambda s: LearnedMapPositions(s.width, s.shape), at_input=True
    ),
    "absolute-resized": MapScheme(
        "absolute, learned, resized",
        lambda s: LearnedMapPositions(s.width, s.shape, resize=True),
        at_input=True,
    ),
    "sinusoidal": MapScheme("absolute, sinusoidal", _sinusoidal, at_input=True),
    "sequence": MapScheme(
        "relative over all rows as one sequence",
        lambda s: Bidirectional(s.head_dim, s.shape[0] * s.shape[1]),
    ),
    "sequence-rotary": MapScheme(
        "rotary over all rows as one sequence", lambda s: Rotary(s.head_dim)
    ),
    "axial-rotary": MapScheme(
        "rotary along each axis", lambda s: AxialRotary(s.head_dim, s.shape, 100.0)
    ),
    "grid": MapScheme(
        "relative along each axis", lambda s: Grid(s.head_dim, s.shape, resize=False)
    ),
    "grid-resized": MapScheme(
        "relative along each axis, resized", lambda s: Grid(s.head_dim, s.shape)
    ),
    "grid-concatenated": MapScheme(
        "relative, half a query for each axis",
        lambda s: Grid(s.head_dim, s.shape, concatenated=True, resize=False),
    ),
    "window": MapScheme(
        "bias by offset (Swin)", lambda s: WindowBias(s.heads, s.shape, resize=False)
    ),
    "window-resized": MapScheme(
        "bias by offset, resized (Swin)", lambda s: WindowBias(s.heads, s.shape)
    ),
    "continuous": MapScheme(
        "bias computed from the offset (Swin v2)", lambda s: ContinuousBias(s.heads, s.shape)
    ),
}
