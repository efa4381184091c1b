from .entry import attention, unavailable, unsupported
from .parts import part, part_gradients

__all__ = ["attention", "part", "part_gradients", "unavailable", "unsupported"]
