"""What all transformers here share: the checks of their configurations, and how they start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, TypeVar, cast

from torch import nn

from relpos.checks import check_count, check_probability

from .positions import POSITIONS, PositionSizes

__all__ = ["TransformerConfig", "draw_blocks"]

ConfigT = TypeVar("ConfigT", bound="TransformerConfig")

# The smallest number of a field, where it is not 1: the row of offset 0 alone.
_LEAST = {"max_distance": 0}


class TransformerConfig:
    """Checks, plain values and position sizes of a frozen dataclass that derives from it.

    Its annotations must be texts (`from __future__ import annotations`): whole numbers `int` or
    `int | None`, switches `bool`. `width`, `heads`, `dropout`, `position` and `max_length` must be
    among its fields.
    """

    width: int
    heads: int
    dropout: float
    position: str

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in fields(cast(Any, self)):
            value = getattr(self, field.name)
            if field.type == "bool" and not isinstance(value, bool):
                raise ValueError(f"{name}: {field.name} must be True or False, got {value!r}")
            if field.type == "int" or (field.type == "int | None" and value is not None):
                count = check_count(name, field.name, value, least=_LEAST.get(field.name, 1))
                object.__setattr__(self, field.name, count)
        if self.width % self.heads:
            raise ValueError(
                f"{name}: width must be a multiple of heads={self.heads}, got {self.width}"
            )
        check_probability(name, "dropout", self.dropout)
        self._check_position(POSITIONS)

    def _check_position(self, allowed: Iterable[str]) -> None:
        """Raise unless the position is one of some names."""
        if not isinstance(self.position, str) or self.position not in allowed:
            raise ValueError(
                f"{type(self).__name__}: position must be one of {', '.join(map(repr, allowed))}, "
                f"got {self.position!r}"
            )

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def sizes(self) -> PositionSizes:
        """What the position scheme is made for, in blocks that see the past alone."""
        known = {field.name for field in fields(PositionSizes)}
        own = {field.name for field in fields(cast(Any, self))}
        return PositionSizes(**{name: getattr(self, name) for name in known & own})

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON."""
        return asdict(cast(Any, self))

    @classmethod
    def from_dict(cls: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
        """The configuration with these fields; what is left out keeps its default.

        Args:
            values: as `to_dict` gives them.

        Raises:
            ValueError: if a field is unknown, one without a default missing, or a value out of
                range.
        """
        name, known = cls.__name__, fields(cast(Any, cls))
        unknown = sorted(set(values) - {field.name for field in known})
        if unknown:
            raise ValueError(
                f"{name}: fields must be among {', '.join(field.name for field in known)}, "
                f"got {', '.join(unknown)}"
            )
        needed = [field.name for field in known if field.default is MISSING]
        given = [field for field in needed if field in values]
        if given != needed:
            raise ValueError(
                f"{name}: fields must contain {', '.join(needed)}, got {', '.join(given) or 'none'}"
            )
        return cls(**values)


def draw_blocks(blocks: nn.Module, *, width: int, residual: int) -> None:
    """Draw everything but the positions: normal, with GPT-2's smaller residual projections.

    GPT-2's standard deviation 0.02 at width 768 is about `0.5 / sqrt(width)`, which is used here;
    the projections that end in the residual stream are divided by the square root of how many they
    are (Radford et al. 2019, section 2.3).

    Args:
        blocks: encoder or decoder blocks of one residual stream.
        width: of the residual stream.
        residual: how many projections end in it.
    """
    std = 0.5 * width**-0.5
    for name, parameter in blocks.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "norm" not in name and "position" not in name:
            ends = name.endswith(("out_proj.weight", "mlp.2.weight"))
            nn.init.normal_(parameter, std=std * residual**-0.5 if ends else std)
