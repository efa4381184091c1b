"""A class for every pixel of an image, by attention over all pixels.

A 3 x 3 convolution, then blocks over the whole map: pre-norm transformer blocks on `GridAttention`,
or the bottleneck blocks of BoTNet (Srinivas et al. 2021), whose attention may be ResNet's 3 x 3
convolution again. The position scheme is the only thing that changes between two models: with the
same seed, every other parameter starts with the same numbers.

Norms are batch norms, as in BoTNet: most pixels of our images are blank, and layer norms would make
blank and ink equally strong.

Images are blank (0) beyond their edge, so that the stem's zero padding is more of the same and does
not tell where the edge is; in deeper convolutions it would (Islam et al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from relpos.checks import check_count, check_shape, check_sizes
from relpos.layers import BottleneckBlock, GridAttention
from relpos.positions import NoPosition

from .configured import ConfiguredModel
from .map_positions import MAP_POSITIONS

__all__ = ["BLOCKS", "CONVOLUTION", "PixelClassifier", "PixelClassifierConfig"]

BLOCKS = ("attention", "bottleneck")
# In place of a position: the bottleneck's attention is a convolution.
CONVOLUTION = "convolution"


@dataclass(frozen=True)
class PixelClassifierConfig:
    """Everything that decides a `PixelClassifier`'s shape.

    Args:
        classes: of a pixel.
        width: channels of the map.
        layers: number of blocks.
        heads: attention heads of a block.
        hidden: width of an attention block's MLP; None means `4 * width`.
        block: `"attention"`, or `"bottleneck"`, whose attention is four times narrower than the
            map.
        position: one of `MAP_POSITIONS`; for bottlenecks also `"convolution"`.
        shape: height and width of the images that the model is trained on, for which learned
            tables are made.

    Raises:
        ValueError: if a value is out of range, or a name unknown.

    >>> PixelClassifierConfig(width=48, heads=3).head_dim
    16
    """

    classes: int = 10
    width: int = 48
    layers: int = 3
    heads: int = 3
    hidden: int | None = None
    block: str = "attention"
    position: str = "grid"
    shape: tuple[int, int] = (16, 16)

    def __post_init__(self) -> None:
        name = "PixelClassifierConfig"
        for size in ("classes", "width", "layers", "heads", "hidden"):
            value = getattr(self, size)
            if not (size == "hidden" and value is None):
                object.__setattr__(self, size, check_count(name, size, value))
        height, width = check_sizes(name, "shape", self.shape, 2)
        object.__setattr__(self, "shape", (height, width))
        positions = (*MAP_POSITIONS, *((CONVOLUTION,) if self.block == "bottleneck" else ()))
        for field, known in (("block", BLOCKS), ("position", positions)):
            value = getattr(self, field)
            if value not in known:
                raise ValueError(
                    f"{name}: {field} must be one of {', '.join(map(repr, known))}, got {value!r}"
                )
        if self.width % (self.narrowing * self.heads):
            what = "heads" if self.narrowing == 1 else f"{self.narrowing} * heads"
            raise ValueError(
                f"{name}: width must be a multiple of {what} = {self.narrowing * self.heads}, "
                f"got {self.width}"
            )

    @property
    def narrowing(self) -> int:
        """How many times narrower than the map its attention is."""
        return 4 if self.block == "bottleneck" else 1

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.narrowing // self.heads

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON.

        >>> config = PixelClassifierConfig()
        >>> PixelClassifierConfig.from_dict(config.to_dict()) == config
        True
        """
        return asdict(self) | {"shape": list(self.shape)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PixelClassifierConfig:
        """The configuration with these fields; what is left out keeps its default.

        Args:
            values: as `to_dict` gives them.

        Raises:
            ValueError: if a field is unknown, or a value out of range.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(
                f"PixelClassifierConfig: fields must be among {', '.join(known)}, "
                f"got {', '.join(unknown)}"
            )
        given = dict(values)
        if isinstance(given.get("shape"), list):
            # JSON has lists.
            given["shape"] = tuple(given["shape"])
        return cls(**given)


class AttentionBlock(nn.Module):
    """`x + A(norm(x))`, then `x + MLP(norm(x))`, on a map.

    Args:
        width: channels of the map.
        heads: of the attention.
        hidden: width of the MLP.
    """

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.BatchNorm2d(width)
        self.attention = GridAttention(width, heads)
        self.mlp_norm = nn.BatchNorm2d(width)
        self.mlp = nn.Sequential(
            nn.Conv2d(width, hidden, 1), nn.GELU(), nn.Conv2d(hidden, width, 1)
        )

    def forward(self, x: Float[Tensor, "b e m n"]) -> Float[Tensor, "b e m n"]:
        """The next map.

        Args:
            x: map.
        """
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class PixelClassifier(ConfiguredModel):
    """Logits of the class of each pixel.

    Args:
        config: the model's shape.

    >>> import torch
    >>> model = PixelClassifier(PixelClassifierConfig(width=8, layers=1, heads=2))
    >>> model(torch.zeros(2, 16, 16)).shape, model(torch.zeros(1, 5, 9)).shape
    (torch.Size([2, 10, 16, 16]), torch.Size([1, 10, 5, 9]))
    """

    config_class: ClassVar = PixelClassifierConfig
    config: PixelClassifierConfig

    def __init__(self, config: PixelClassifierConfig) -> None:
        super().__init__(config)
        self.stem = nn.Sequential(
            nn.Conv2d(1, config.width, 3, padding=1, bias=False),
            nn.BatchNorm2d(config.width),
            nn.ReLU(),
        )
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.norm = nn.BatchNorm2d(config.width)
        self.head = nn.Conv2d(config.width, config.classes, 1)
        self.reset_parameters()
        # What differs between two models draws its numbers last, so that the rest agrees.
        self.position: nn.Module | None = None
        if config.position == CONVOLUTION:
            narrow = config.width // config.narrowing
            for block in self.blocks:
                block.add_module("attention", nn.Conv2d(narrow, narrow, 3, padding=1, bias=False))
            return
        scheme = MAP_POSITIONS[config.position]
        if scheme.at_input:
            self.position = scheme.make(config)
            return
        for module in self.modules():
            if isinstance(module, GridAttention):
                module.position = scheme.make(config)

    def reset_parameters(self) -> None:
        """Draw the head and, of attention blocks, everything but norms and positions.

        Matrices are normal with variance `1 / width`; those that end in the residual stream are
        divided by `sqrt(2 * layers)` (Radford et al. 2019, section 2.3). The stem and bottlenecks
        keep the numbers that their layers draw.
        """
        std = self.config.width**-0.5
        nn.init.normal_(self.head.weight, std=0.5 * std)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]
        if self.config.block != "attention":
            return
        residual = std * (2 * self.config.layers) ** -0.5
        for name, parameter in self.blocks.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                ends = name.endswith(("out_proj.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=residual if ends else std)

    def forward(self, images: Float[Tensor, "b m n"]) -> Float[Tensor, "b classes m n"]:
        """Logits of each pixel's class.

        Args:
            images: ink from 0 (blank) to 1, of any height and width.

        Raises:
            ShapeError: if `images` is not `(b, height, width)`.
        """
        check_shape("PixelClassifier", "images", images, "b m n", {})
        x = self.stem(images[:, None])
        if self.position is not None:
            x = self.position(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _block(config: PixelClassifierConfig) -> nn.Module:
    if config.block == "bottleneck":
        return BottleneckBlock(
            config.width,
            config.shape,
            dim_out=config.width,
            proj_factor=config.narrowing,
            heads=config.heads,
            dim_head=config.head_dim,
            position=NoPosition(),
        )
    hidden = 4 * config.width if config.hidden is None else config.hidden
    return AttentionBlock(config.width, config.heads, hidden)
