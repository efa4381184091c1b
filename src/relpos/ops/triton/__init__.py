from .entry import attention, part, part_gradients, unavailable, unsupported

__all__ = ["attention", "part", "part_gradients", "unavailable", "unsupported"]
