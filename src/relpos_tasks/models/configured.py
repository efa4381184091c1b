"""What a model needs so that a checkpoint can be read back into it: a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import nn

__all__ = ["ConfiguredModel", "ModelConfig"]


@runtime_checkable
class ModelConfig(Protocol):
    """Everything that decides a model's shape, as plain values."""

    @property
    def layers(self) -> int:
        """How many blocks the model has."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON."""
        ...

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """The configuration with these fields.

        Raises:
            ValueError: if a field is unknown, missing or out of range.
        """
        ...


class ConfiguredModel(nn.Module):
    """A model that is made from a configuration alone: `model_class(config)`."""

    config_class: ClassVar[type[ModelConfig]]

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
