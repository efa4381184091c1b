from .entry import attention, unavailable, unsupported

__all__ = ["attention", "unavailable", "unsupported"]
