from .entry import attention, is_fast, part, part_gradients, unavailable, unsupported

__all__ = ["attention", "is_fast", "part", "part_gradients", "unavailable", "unsupported"]
